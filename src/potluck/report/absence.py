"""When each device was dead or cut off, told from the events of its life."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from potluck.report.story import Event

__all__ = ["Absence", "absences"]

_DIES = {"crash", "leave"}


class Absence(NamedTuple):
    """From `start` to `end` the device was `dead`, or alive but `cut` off."""

    start: float
    end: float
    what: str


class Life:
    """One device's state, event by event."""

    def __init__(self) -> None:
        self.found: list[Absence] = []
        self._since: dict[str, float] = {}
        self._seen = False

    def see(self, event: Event) -> None:
        if event.name in _DIES:
            self._begin("dead", event.at)
        elif event.name == "lost" and not self._since:
            self._begin("dead", event.at)  # a live run knows no more than that
        elif event.name in ("start", "joined"):
            self._come(event)
        elif event.name == "link":
            self._begin("cut", event.at) if event.fields.get("value") == 0 else self._finish("cut", event.at)
        self._seen = True

    def _come(self, event: Event) -> None:
        if not self._seen:
            self._since["dead"] = 0.0  # what comes first in a life is that it was not there
        self._finish("dead", event.at)

    def _begin(self, what: str, at: float) -> None:
        self._since.setdefault(what, at)

    def _finish(self, what: str, at: float) -> None:
        start = self._since.pop(what, None)
        if start is not None:
            self.found.append(Absence(start, at, what))

    def close(self, end: float) -> list[Absence]:
        for what in list(self._since):
            self._finish(what, end)
        return sorted(self.found)


def absences(events: Iterable[Event], end: float) -> dict[str, list[Absence]]:
    """The absences of each node that has any."""
    lives: dict[str, Life] = {}
    for event in events:
        lives.setdefault(event.node, Life()).see(event)
    closed = {node: life.close(end) for node, life in lives.items()}
    return {node: found for node, found in closed.items() if found}
