"""Where the time of each device went: the rows of the live table and of the summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from potluck.cli.console import plain_table
from potluck.cli.figures import amount, share

if TYPE_CHECKING:
    from rich.table import Table

    from potluck.fleet import Fleet
    from potluck.journal.tally import Load, Tally

__all__ = ["Row", "rows", "table"]

MOST = 20
_PARTS = {"compute": "green", "pull": "cyan", "push": "magenta", "wait": "dim"}
_STATES = {"computing": "green", "pushing": "magenta", "waiting": "dim", "lost": "red"}


class Row(NamedTuple):
    """A device, or a group of devices alike where there are too many to show each."""

    label: str
    devices: Sequence[str]


def rows(fleet: Fleet) -> list[Row]:
    """One row for each device; for large fleets one for each `[[devices]]` table."""
    members = [device.name for device in fleet.members]
    if len(members) <= MOST:
        return [Row(name, (name,)) for name in members]
    found, start = [], 0
    for group in fleet.devices:
        label = group.name or group.preset
        label += f" ×{group.count:,}" if group.count > 1 else ""
        found.append(Row(label, members[start : start + group.count]))
        start += group.count
    return found


def table(found: Sequence[Row], tally: Tally, now: float, *, doing: bool = False) -> Table:
    """Shares of the time so far, and counts; `doing` adds what each device is at."""
    loads = [tally.load(row.devices) for row in found[:MOST]]
    counted = any(load.samples for load in loads)
    columns = [*(["now"] if doing else []), *_PARTS, "updates", *(["samples"] if counted else [])]
    drawn = plain_table("device", *columns, "bytes", "lost", "late")
    for column in drawn.columns:
        column.style = _PARTS.get(str(column.header), "")
        column.justify = "left" if column.header in ("device", "now") else "right"
    for row, load in zip(found, loads, strict=False):
        state = [_doing(row, tally)] if doing else []
        drawn.add_row(row.label, *state, *_cells(load, now * len(row.devices), counted))
    if len(found) > MOST:
        drawn.add_row(f"… {len(found) - MOST} more")
    return drawn


def _cells(load: Load, whole_s: float, counted: bool) -> list[str]:
    waiting = max(whole_s - load.compute_s - load.pull_s - load.push_s, 0.0)
    shares = [share(part, whole_s) for part in (load.compute_s, load.pull_s, load.push_s, waiting)]
    counts = [f"{load.updates:,}", *([f"{load.samples:,}"] if counted else [])]
    return [*shares, *counts, amount(load.bytes), str(load.lost or ""), str(load.late or "")]


def _doing(row: Row, tally: Tally) -> str:
    if len(row.devices) > 1:
        return ""
    state = tally.state(row.devices[0])
    return f"[{_STATES[state]}]{state}[/]"
