"""How long a device takes for a stretch of work when its speed changes on the way."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

__all__ = ["SpeedCurve"]

Piece = tuple[float, float]


class SpeedCurve:
    """A speed over time that can say when a stretch of work ends; asked with times that never go back."""

    __slots__ = ("_intervals", "_upcoming")

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._intervals = pieces
        self._upcoming = deque([next(pieces)])

    def speed_at(self, now: float) -> float:
        """The speed at `now`; what lies before is forgotten."""
        while now >= self._upcoming[0][0]:
            if len(self._upcoming) == 1:
                self._upcoming.append(next(self._intervals))
            self._upcoming.popleft()
        return self._upcoming[0][1]

    def finish_time(self, start: float, seconds: float) -> float:
        """When work that takes `seconds` at speed 1 ends if begun at `start`; never, at a speed of 0 for ever."""
        self.speed_at(start)
        now = start
        for until, level in self._remaining_intervals():
            if level > 0 and now + seconds / level <= until:
                return now + seconds / level
            seconds -= (until - now) * level if level > 0 else 0.0
            now = until
        return math.inf

    def _remaining_intervals(self) -> Iterator[Piece]:
        index = 0
        while True:
            if index == len(self._upcoming):
                self._upcoming.append(next(self._intervals))
            yield self._upcoming[index]
            if math.isinf(self._upcoming[index][0]):
                return
            index += 1
