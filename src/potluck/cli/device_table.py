"""Tables of devices: which have joined, what each is doing and where its time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from potluck.cli.console import plain_table
from potluck.cli.number_format import format_bit_rate, format_bytes, format_flops, format_fraction, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from potluck.fleet import Fleet
    from potluck.job import Job
    from potluck.journal.journal_totals import DeviceTotals, JournalTotals

__all__ = ["DeviceRow", "JoiningDevices", "device_labels", "device_rows", "device_table"]

_MAX_ROWS = 20
_ACTIVITIES = {"compute": "green", "pull": "cyan", "push": "magenta", "wait": "dim"}
_LEFT_ALIGNED = ("device", "now", "assigned")
_DISPENSABLE = (  # left out in this order where the terminal is too narrow for all columns
    "bytes",
    "updates",
    "wait",
    "late",
    "push",
    "pull",
    "compute",
    "lost",
    "samples",
    "staleness",
    "link",
    "last seen",
    "assigned",
    "samples/s",
    "now",
)
_STATE_COLOURS = {"computing": "green", "pushing": "magenta", "waiting": "dim", "lost": "red"}


class DeviceRow(NamedTuple):
    """One row: a device, or a group of equal devices where there are too many to show each."""

    label: str
    devices: Sequence[str]


def device_rows(fleet: Fleet) -> list[DeviceRow]:
    """One row per device; for large fleets one per `[[devices]]` table."""
    members = [device.name for device in fleet.members]
    if len(members) <= _MAX_ROWS:
        return [DeviceRow(name, (name,)) for name in members]
    rows, start = [], 0
    for group in fleet.devices:
        label = group.name or group.preset
        label += f" ×{group.count:,}" if group.count > 1 else ""
        rows.append(DeviceRow(label, members[start : start + group.count]))
        start += group.count
    return rows


def device_labels(job: Job) -> Mapping[str, str]:
    """What the job's sub-model part gives each device."""
    names = [device.name for device in job.fleet.members]
    return job.rounds.submodel.device_labels(names) if job.pipeline is None else {}


def device_table(
    rows: Sequence[DeviceRow],
    tally: JournalTotals,
    now: float,
    *,
    doing: bool = False,
    width: int | None = None,
    assigned: Mapping[str, str] | None = None,
) -> Table:
    """Fractions of the time so far, and counts; `doing` adds what each device is doing, `assigned` what it trains.

    Columns without any value are left out, and the least important ones where the table is wider than `width`.
    """
    shown = rows[:_MAX_ROWS]
    columns = {"device": [row.label for row in shown], **_table_columns(shown, tally, now, doing, assigned or {})}
    for name in _DISPENSABLE:
        if width is not None and _table_width(columns) > width:
            columns.pop(name, None)
    drawn = plain_table(*columns)
    for column in drawn.columns:
        column.style = _ACTIVITIES.get(str(column.header), "")
        column.justify = "left" if column.header in _LEFT_ALIGNED else "right"
    for cells in zip(*columns.values(), strict=True):
        drawn.add_row(*(_colour_state(cell) for cell in cells))
    if len(rows) > _MAX_ROWS:
        drawn.add_row(f"… {len(rows) - _MAX_ROWS} more")
    return drawn


def _table_columns(
    rows: Sequence[DeviceRow], tally: JournalTotals, now: float, doing: bool, assigned: Mapping[str, str]
) -> dict[str, list[str]]:
    totals = [tally.sum_devices(row.devices) for row in rows]
    cells = [
        {
            **(_state_cells(row, total, tally, now, assigned) if doing else {}),
            **_time_cells(total, now * len(row.devices), doing),
        }
        for row, total in zip(rows, totals, strict=True)
    ]
    order = (
        "now",
        "assigned",
        *_ACTIVITIES,
        "updates",
        "samples",
        "samples/s",
        "link",
        "staleness",
        "last seen",
        "bytes",
    )
    columns = {name: [row_cells.get(name, "") for row_cells in cells] for name in order}
    always = (*_ACTIVITIES, "updates", "bytes")
    shown = {name: column for name, column in columns.items() if name in always or any(column)}
    return {**shown, **{name: [row_cells[name] for row_cells in cells] for name in ("lost", "late")}}


def _state_cells(
    row: DeviceRow, total: DeviceTotals, tally: JournalTotals, now: float, assigned: Mapping[str, str]
) -> dict[str, str]:
    """What a device is doing; for a group, what holds for all of its devices."""
    single = row.devices[0] if len(row.devices) == 1 else None
    status = tally.device_status
    last_times = [at for name in row.devices if (at := status.last_seen(name)) is not None]
    stale = [versions for name in row.devices if (versions := status.update_staleness(name)) is not None]
    return {
        "now": tally.current_activity(single) if single is not None else "",
        "assigned": (status.assigned_work(single) or assigned.get(single, "")) if single is not None else "",
        "samples/s": _format_per_s(total.samples / now) if total.samples and now > 0 else "",
        "link": " ".join(_link_rates(total)),
        "staleness": str(max(stale)) if stale else "",
        "last seen": _format_ago(now - max(last_times)) if last_times else "",
    }


def _link_rates(total: DeviceTotals) -> Iterator[str]:
    """How fast its transfers were, down and up."""
    for sign, nbytes, spent in (("↓", total.pulled_bytes, total.pull_s), ("↑", total.pushed_bytes, total.push_s)):
        if nbytes > 0 and spent > 0:
            yield f"{sign} {format_bit_rate(nbytes / spent)}"


def _format_per_s(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 99.95 else f"{per_s:.3g}"


def _format_ago(passed: float) -> str:
    return f"{format_seconds(round(passed, 1))} ago" if passed >= 0.05 else "just now"


def _time_cells(total: DeviceTotals, whole_s: float, doing: bool) -> dict[str, str]:
    wait_s = max(whole_s - total.compute_s - total.pull_s - total.push_s, 0.0)
    spent = zip(_ACTIVITIES, (total.compute_s, total.pull_s, total.push_s, wait_s), strict=True)
    return {
        **{name: format_fraction(seconds, whole_s) for name, seconds in spent},
        "updates": f"{total.updates:,}",
        "samples": f"{total.samples:,}" if total.samples and not doing else "",
        "bytes": format_bytes(total.bytes),
        "lost": str(total.lost or ""),
        "late": str(total.late or ""),
    }


def _table_width(columns: Mapping[str, Sequence[str]]) -> int:
    from rich.cells import cell_len

    return sum(max(map(cell_len, (name, *cells))) + 2 for name, cells in columns.items()) - 2


def _colour_state(cell: str) -> str:
    return f"[{_STATE_COLOURS[cell]}]{cell}[/]" if cell in _STATE_COLOURS else cell


class JoiningDevices(NamedTuple):
    """The devices of a fleet and which of them have joined, before a live run begins."""

    fleet: Fleet
    joined: Mapping[str, int]
    join_commands: Mapping[str, str] = {}  # by device, without the token

    def missing_names(self) -> list[str]:
        return sorted(device.name for device in self.fleet.members if device.name not in self.joined)

    def status_line(self) -> str:
        missing, count = self.missing_names(), len(self.fleet.members)
        waiting = f"; waiting for {', '.join(missing)}" if missing else "; all have joined"
        return f"{count - len(missing)} of {count} devices{waiting}"

    def status_table(self) -> Table:
        """One row per device, the missing ones first."""
        drawn = plain_table("device", "speed", "", *(["to join, add the token above"] if self.join_commands else []))
        for column in drawn.columns[2:]:
            column.justify = "left"
        ranked = sorted(self.fleet.members, key=lambda device: (device.name in self.joined, device.name))
        for device in ranked[:_MAX_ROWS]:
            joined = device.name in self.joined
            state = "[green]joined[/]" if joined else "[red]missing[/]"
            command = [self.join_commands.get(device.name, "")] if self.join_commands and not joined else []
            drawn.add_row(device.name, format_flops(device.flops), state, *command)
        if len(ranked) > _MAX_ROWS:
            drawn.add_row(f"… {len(ranked) - _MAX_ROWS} more")
        return drawn
