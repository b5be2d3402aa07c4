"""Derives from the events of a device when it was dead or disconnected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from potluck.report.run_history import JournalEvent

__all__ = ["Absence", "device_absences"]

_DEATHS = {"crash", "leave"}


class Absence(NamedTuple):
    """From `start` to `end` the device was `dead`, or alive but disconnected (`cut`)."""

    start: float
    end: float
    what: str


class AbsenceTracker:
    """The absences of one device, updated event by event."""

    def __init__(self) -> None:
        self.absences: list[Absence] = []
        self._since: dict[str, float] = {}
        self._has_events = False

    def add_event(self, event: JournalEvent) -> None:
        if event.name in _DEATHS:
            self._begin_absence("dead", event.at)
        elif event.name == "lost" and not self._since:
            self._begin_absence("dead", event.at)  # the only event of a death in a live run
        elif event.name in ("start", "joined"):
            self._mark_present(event)
        elif event.name == "link":
            self._begin_absence("cut", event.at) if event.fields.get("value") == 0 else self._end_absence(
                "cut", event.at
            )
        self._has_events = True

    def _mark_present(self, event: JournalEvent) -> None:
        if not self._has_events:
            self._since["dead"] = 0.0  # its first event is a start: it was absent before
        self._end_absence("dead", event.at)

    def _begin_absence(self, what: str, at: float) -> None:
        self._since.setdefault(what, at)

    def _end_absence(self, what: str, at: float) -> None:
        start = self._since.pop(what, None)
        if start is not None:
            self.absences.append(Absence(start, at, what))

    def close(self, end: float) -> list[Absence]:
        for what in list(self._since):
            self._end_absence(what, end)
        return sorted(self.absences)


def device_absences(events: Iterable[JournalEvent], end: float) -> dict[str, list[Absence]]:
    """The absences of every node that has any."""
    trackers: dict[str, AbsenceTracker] = {}
    for event in events:
        trackers.setdefault(event.node, AbsenceTracker()).add_event(event)
    closed = {node: tracker.close(end) for node, tracker in trackers.items()}
    return {node: absences for node, absences in closed.items() if absences}
