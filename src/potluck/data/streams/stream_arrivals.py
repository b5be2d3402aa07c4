"""Arrival times of a stream with a piecewise constant rate: the integral of the rate and its inverse, in closed form.

`arrival_time(n)` is the time at which the n-th sample arrives. `arrived_by(t)` is the largest n with
`arrival_time(n) <= t`, so the two are exact inverses in floating point too.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

__all__ = ["StreamArrivals"]

RateInterval = tuple[float, float]


class StreamArrivals:
    """One stream; `intervals` are (until, samples per second), the last one until infinity."""

    def __init__(self, intervals: Iterable[RateInterval]) -> None:
        self._source = iter(intervals)
        self._ends: list[float] = []
        self._rates: list[float] = []
        self._counts: list[float] = []  # samples arrived by the end of each interval

    def rate_at(self, now: float) -> float:
        """Samples per second at time `now`."""
        self._extend_to(now)
        return self._rates[bisect_right(self._ends, now)]

    def arrived_by(self, now: float) -> int:
        """The number of samples that have arrived by `now`."""
        if now <= 0:
            return 0
        self._extend_to(now)
        index = bisect_right(self._ends, now)
        count = math.floor(self._count_before(index) + (now - self._start_of(index)) * self._rates[index])
        while self.arrival_time(count + 1) <= now:
            count += 1
        while count > 0 and self.arrival_time(count) > now:
            count -= 1
        return count

    def arrival_time(self, count: int) -> float:
        """The time at which `count` samples have arrived; infinity if that never happens."""
        if count <= 0:
            return 0.0
        while not self._counts or self._counts[-1] < count:
            if not self._extend_once():
                return math.inf
        index = bisect_left(self._counts, count)
        seconds = (count - self._count_before(index)) / self._rates[index]
        return min(self._start_of(index) + seconds, self._ends[index])

    def _extend_to(self, now: float) -> None:
        while not self._ends or self._ends[-1] <= now:
            if not self._extend_once():
                return

    def _extend_once(self) -> bool:
        """Read one more interval of the trace; False if there is none."""
        interval = next(self._source, None)
        if interval is None:
            return False
        until, rate = interval
        start, before = self._start_of(len(self._ends)), self._count_before(len(self._ends))
        self._counts.append(before + (rate * (until - start) if rate else 0.0))
        self._ends.append(until)
        self._rates.append(rate)
        return True

    def _start_of(self, index: int) -> float:
        return self._ends[index - 1] if index else 0.0

    def _count_before(self, index: int) -> float:
        return self._counts[index - 1] if index else 0.0
