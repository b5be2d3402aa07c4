"""What the page says of each device: its figures, its load, and where its time went."""

from __future__ import annotations

from typing import Any

from potluck.fleet import Device
from potluck.report.absence import Absence, absences
from potluck.report.folder import RunFolder
from potluck.report.shares import shares
from potluck.report.story import Story, Track

__all__ = ["MOST_ROWS", "described", "nodes"]

MOST_ROWS = 300  # devices that a page shows one by one
COORDINATOR = "coordinator"


def nodes(story: Story, folder: RunFolder) -> list[str]:
    """Every device in the fleet's order, then those that only the journal knows; the busiest if there are too many."""
    fleet = folder.fleet()
    known = [device.name for device in fleet.members] if fleet is not None else []
    seen = [*story.tracks, *(event.node for event in story.events), *(node for _, node in story.series)]
    found = [name for name in dict.fromkeys([*known, *seen]) if name != COORDINATOR]
    if len(found) <= MOST_ROWS:
        return found
    busiest = sorted(found, key=lambda name: -len(story.tracks.get(name, ())))[:MOST_ROWS]
    return [name for name in found if name in set(busiest)]


def described(story: Story, folder: RunFolder, names: list[str]) -> list[dict[str, Any]]:
    """One entry for each device."""
    fleet = folder.fleet()
    boards = {device.name: device for device in fleet.members} if fleet is not None else {}
    gone = absences(story.events, story.end)
    return [_one(story, name, boards.get(name), gone.get(name, [])) for name in names]


def _one(story: Story, name: str, board: Device | None, gone: list[Absence]) -> dict[str, Any]:
    track, load = story.tracks.get(name, Track()), story.tally.load([name])
    return {
        "name": name,
        "seconds": shares(track, story.lanes, gone, story.end),
        "gone": [[absence.start, absence.end, absence.what] for absence in gone],
        "received": track.received,
        "sent": track.sent,
        "samples": load.samples,
        "updates": load.updates,
        "seen": max(track.ends, default=None),
        "lost": story.counts[name, "lost"],
        "late": story.counts[name, "late"],
        "state": "away" if gone and gone[-1].end >= story.end else story.tally.state(name),
        **(_figures(board) if board is not None else {}),
    }


def _figures(board: Device) -> dict[str, float]:
    link = board.link
    figures = {"flops": board.flops, "memory": board.memory, "watts": board.watts}
    return {**figures, "up": float(link.up), "down": float(link.down), "latency": float(link.latency)}
