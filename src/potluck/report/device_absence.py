"""When each device was dead or cut off, told from the events of its life."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from potluck.report.run_history import JournalEvent

__all__ = ["Absence", "device_absences"]

_DIES = {"crash", "leave"}


class Absence(NamedTuple):
    """From `start` to `end` the device was `dead`, or alive but `cut` off."""

    start: float
    end: float
    what: str


class AbsenceTracker:
    """One device's state, event by event."""

    def __init__(self) -> None:
        self.absences: list[Absence] = []
        self._since: dict[str, float] = {}
        self._seen = False

    def add_event(self, event: JournalEvent) -> None:
        if event.name in _DIES:
            self._begin_absence("dead", event.at)
        elif event.name == "lost" and not self._since:
            self._begin_absence("dead", event.at)  # a live run knows no more than that
        elif event.name in ("start", "joined"):
            self._mark_present(event)
        elif event.name == "link":
            self._begin_absence("cut", event.at) if event.fields.get("value") == 0 else self._end_absence(
                "cut", event.at
            )
        self._seen = True

    def _mark_present(self, event: JournalEvent) -> None:
        if not self._seen:
            self._since["dead"] = 0.0  # what comes first in a life is that it was not there
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
    """The absences of each node that has any."""
    lives: dict[str, AbsenceTracker] = {}
    for event in events:
        lives.setdefault(event.node, AbsenceTracker()).add_event(event)
    closed = {node: life.close(end) for node, life in lives.items()}
    return {node: found for node, found in closed.items() if found}
