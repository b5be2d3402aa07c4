"""What the page says of each device: its figures, its load, and where its time went."""

from __future__ import annotations

from typing import Any

from potluck.fleet import Device
from potluck.report.device_absence import Absence, device_absences
from potluck.report.run_folder import RunFolder
from potluck.report.run_history import RunHistory, SpanTrack
from potluck.report.time_breakdown import seconds_by_class

__all__ = ["MOST_ROWS", "describe_devices", "shown_devices"]

MOST_ROWS = 300  # devices that a page shows one by one
COORDINATOR = "coordinator"


def shown_devices(story: RunHistory, folder: RunFolder) -> list[str]:
    """Every device in the fleet's order, then those that only the journal knows; the busiest if there are too many."""
    fleet = folder.load_fleet()
    known = [device.name for device in fleet.members] if fleet is not None else []
    seen = [*story.tracks, *(event.node for event in story.events), *(node for _, node in story.series)]
    found = [name for name in dict.fromkeys([*known, *seen]) if name != COORDINATOR]
    if len(found) <= MOST_ROWS:
        return found
    busiest = sorted(found, key=lambda name: -len(story.tracks.get(name, ())))[:MOST_ROWS]
    return [name for name in found if name in set(busiest)]


def describe_devices(story: RunHistory, folder: RunFolder, names: list[str]) -> list[dict[str, Any]]:
    """One entry for each device."""
    fleet = folder.load_fleet()
    boards = {device.name: device for device in fleet.members} if fleet is not None else {}
    gone = device_absences(story.events, story.end)
    return [_describe_device(story, name, boards.get(name), gone.get(name, [])) for name in names]


def _describe_device(story: RunHistory, name: str, board: Device | None, gone: list[Absence]) -> dict[str, Any]:
    track, load = story.tracks.get(name, SpanTrack()), story.tally.sum_devices([name])
    return {
        "name": name,
        "seconds": seconds_by_class(track, story.lanes, gone, story.end),
        "gone": [[absence.start, absence.end, absence.what] for absence in gone],
        "received": track.received,
        "sent": track.sent,
        "samples": load.samples,
        "updates": load.updates,
        "seen": max(track.ends, default=None),
        "lost": story.counts[name, "lost"],
        "late": story.counts[name, "late"],
        "state": "away" if gone and gone[-1].end >= story.end else story.tally.current_activity(name),
        **(_board_figures(board) if board is not None else {}),
    }


def _board_figures(board: Device) -> dict[str, float]:
    link = board.link
    figures = {"flops": board.flops, "memory": board.memory, "watts": board.watts}
    return {**figures, "up": float(link.up), "down": float(link.down), "latency": float(link.latency)}
