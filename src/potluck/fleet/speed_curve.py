"""Computes how long work takes on a device whose speed changes while it runs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from potluck.fleet.traces import LevelInterval

__all__ = ["SpeedCurve"]


class SpeedCurve:
    """A device's speed over time. Query it with non-decreasing times: intervals in the past are discarded."""

    __slots__ = ("_intervals", "_upcoming")

    def __init__(self, intervals: Iterator[LevelInterval]) -> None:
        self._intervals = intervals
        self._upcoming = deque([next(intervals)])

    def speed_at(self, now: float) -> float:
        """The speed at `now`; discards the intervals that end before."""
        while now >= self._upcoming[0][0]:
            if len(self._upcoming) == 1:
                self._upcoming.append(next(self._intervals))
            self._upcoming.popleft()
        return self._upcoming[0][1]

    def finish_time(self, start: float, seconds: float) -> float:
        """When work that takes `seconds` at speed 1 ends if it starts at `start`; infinity if the speed stays 0."""
        self.speed_at(start)
        now = start
        for until, level in self._remaining_intervals():
            if level > 0 and now + seconds / level <= until:
                return now + seconds / level
            seconds -= (until - now) * level if level > 0 else 0.0
            now = until
        return math.inf

    def _remaining_intervals(self) -> Iterator[LevelInterval]:
        index = 0
        while True:
            if index == len(self._upcoming):
                self._upcoming.append(next(self._intervals))
            yield self._upcoming[index]
            if math.isinf(self._upcoming[index][0]):
                return
            index += 1
