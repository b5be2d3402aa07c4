"""How each device stands and where its time went: the rows of the live table and of the summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from potluck.cli.console import plain_table
from potluck.cli.number_format import format_bit_rate, format_bytes, format_fraction, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from potluck.fleet import Fleet
    from potluck.job import Job
    from potluck.journal.journal_totals import DeviceTotals, JournalTotals

__all__ = ["DeviceRow", "class_group_labels", "device_rows", "device_table"]

MOST = 20
_PARTS = {"compute": "green", "pull": "cyan", "push": "magenta", "wait": "dim"}
_LEFT = ("device", "now", "part")  # the other columns are figures
_LEAVING = (
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
    "part",
    "samples/s",
    "now",
)  # where there is no room for all, from the least important on
_STATES = {"computing": "green", "pushing": "magenta", "waiting": "dim", "lost": "red"}


class DeviceRow(NamedTuple):
    """A device, or a group of devices alike where there are too many to show each."""

    label: str
    devices: Sequence[str]


def device_rows(fleet: Fleet) -> list[DeviceRow]:
    """One row for each device; for large fleets one for each `[[devices]]` table."""
    members = [device.name for device in fleet.members]
    if len(members) <= MOST:
        return [DeviceRow(name, (name,)) for name in members]
    found, start = [], 0
    for group in fleet.devices:
        label = group.name or group.preset
        label += f" ×{group.count:,}" if group.count > 1 else ""
        found.append(DeviceRow(label, members[start : start + group.count]))
        start += group.count
    return found


def class_group_labels(job: Job) -> Mapping[str, str]:
    """What each device holds where a job's devices train by class groups."""
    from potluck.model.decoupled.class_groups import ClassGroups

    part = job.rounds.submodel
    if job.pipeline is not None or not isinstance(part, ClassGroups):
        return {}
    many = part.groups if isinstance(part.groups, int) else len(part.groups)
    held = part.groups_by_device([device.name for device in job.fleet.members], many)
    return {name: f"group{'s' * (len(own) > 1)} {', '.join(map(str, own))}" for name, own in held.items()}


def device_table(
    found: Sequence[DeviceRow],
    tally: JournalTotals,
    now: float,
    *,
    doing: bool = False,
    width: int | None = None,
    parts: Mapping[str, str] | None = None,
) -> Table:
    """Shares of the time so far, and counts; `doing` adds how each device stands, and `parts` what it was given.

    A column of which nothing is known is left out; in less than `width` so are the least important ones.
    """
    shown = found[:MOST]
    columns = {"device": [row.label for row in shown], **_table_columns(shown, tally, now, doing, parts or {})}
    for name in _LEAVING:
        if width is not None and _table_width(columns) > width:
            columns.pop(name, None)
    drawn = plain_table(*columns)
    for column in drawn.columns:
        column.style = _PARTS.get(str(column.header), "")
        column.justify = "left" if column.header in _LEFT else "right"
    for cells in zip(*columns.values(), strict=True):
        drawn.add_row(*(_colour_state(cell) for cell in cells))
    if len(found) > MOST:
        drawn.add_row(f"… {len(found) - MOST} more")
    return drawn


def _table_columns(
    found: Sequence[DeviceRow], tally: JournalTotals, now: float, doing: bool, parts: Mapping[str, str]
) -> dict[str, list[str]]:
    loads = [tally.sum_devices(row.devices) for row in found]
    cells = [
        {
            **(_state_cells(row, load, tally, now, parts) if doing else {}),
            **_time_cells(load, now * len(row.devices), doing),
        }
        for row, load in zip(found, loads, strict=True)
    ]
    order = ("now", "part", *_PARTS, "updates", "samples", "samples/s", "link", "staleness", "last seen", "bytes")
    found_of = {name: [one.get(name, "") for one in cells] for name in order}
    known = {name: column for name, column in found_of.items() if name in (*_PARTS, "updates", "bytes") or any(column)}
    return {**known, **{name: [one[name] for one in cells] for name in ("lost", "late")}}


def _state_cells(
    row: DeviceRow, load: DeviceTotals, tally: JournalTotals, now: float, parts: Mapping[str, str]
) -> dict[str, str]:
    """How a device stands; of a group, what can be said of all of them."""
    alone = row.devices[0] if len(row.devices) == 1 else None
    standing = tally.device_status
    seen = [at for name in row.devices if (at := standing.last_seen(name)) is not None]
    stale = [behind for name in row.devices if (behind := standing.update_staleness(name)) is not None]
    return {
        "now": tally.current_activity(alone) if alone is not None else "",
        "part": (standing.assigned_work(alone) or parts.get(alone, "")) if alone is not None else "",
        "samples/s": _format_per_s(load.samples / now) if load.samples and now > 0 else "",
        "link": " ".join(_link_rates(load)),
        "staleness": str(max(stale)) if stale else "",
        "last seen": _format_ago(now - max(seen)) if seen else "",
    }


def _link_rates(load: DeviceTotals) -> Iterator[str]:
    """How fast its transfers were, down and up."""
    for sign, nbytes, spent in (("↓", load.pulled_bytes, load.pull_s), ("↑", load.pushed_bytes, load.push_s)):
        if nbytes > 0 and spent > 0:
            yield f"{sign} {format_bit_rate(nbytes / spent)}"


def _format_per_s(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 99.95 else f"{per_s:.3g}"


def _format_ago(passed: float) -> str:
    return f"{format_seconds(round(passed, 1))} ago" if passed >= 0.05 else "just now"


def _time_cells(load: DeviceTotals, whole_s: float, doing: bool) -> dict[str, str]:
    waiting = max(whole_s - load.compute_s - load.pull_s - load.push_s, 0.0)
    spent = zip(_PARTS, (load.compute_s, load.pull_s, load.push_s, waiting), strict=True)
    return {
        **{name: format_fraction(part, whole_s) for name, part in spent},
        "updates": f"{load.updates:,}",
        "samples": f"{load.samples:,}" if load.samples and not doing else "",
        "bytes": format_bytes(load.bytes),
        "lost": str(load.lost or ""),
        "late": str(load.late or ""),
    }


def _table_width(columns: Mapping[str, Sequence[str]]) -> int:
    from rich.cells import cell_len

    return sum(max(map(cell_len, (name, *cells))) + 2 for name, cells in columns.items()) - 2


def _colour_state(cell: str) -> str:
    return f"[{_STATES[cell]}]{cell}[/]" if cell in _STATES else cell
