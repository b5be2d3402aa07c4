"""When samples stream in: the integral of a rate that is constant piece by piece, and its inverse, in closed form.

`when(n)` is what counts: the moment at which the n-th sample is there. `arrived(t)` is the largest n with
`when(n) <= t`, so that the two are exact inverses in floating point as well.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

__all__ = ["StreamArrivals"]

Piece = tuple[float, float]


class StreamArrivals:
    """One stream; `pieces` are (until, samples per second), the last of which reaches to infinity."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._source = iter(pieces)
        self._ends: list[float] = []
        self._rates: list[float] = []
        self._counts: list[float] = []  # how much has come in by the end of each piece

    def rate_at(self, now: float) -> float:
        """Samples per second at this moment."""
        self._extend_to(now)
        return self._rates[bisect_right(self._ends, now)]

    def arrived_by(self, now: float) -> int:
        """How many samples have streamed in by now."""
        if now <= 0:
            return 0
        self._extend_to(now)
        place = bisect_right(self._ends, now)
        count = math.floor(self._count_before(place) + (now - self._start_of(place)) * self._rates[place])
        while self.arrival_time(count + 1) <= now:
            count += 1
        while count > 0 and self.arrival_time(count) > now:
            count -= 1
        return count

    def arrival_time(self, count: int) -> float:
        """The moment at which so many samples have streamed in; infinite if that never happens."""
        if count <= 0:
            return 0.0
        while not self._counts or self._counts[-1] < count:
            if not self._extend_once():
                return math.inf
        place = bisect_left(self._counts, count)
        seconds = (count - self._count_before(place)) / self._rates[place]
        return min(self._start_of(place) + seconds, self._ends[place])

    def _extend_to(self, now: float) -> None:
        while not self._ends or self._ends[-1] <= now:
            if not self._extend_once():
                return

    def _extend_once(self) -> bool:
        """Take one more piece of the trace, if there is one."""
        piece = next(self._source, None)
        if piece is None:
            return False
        until, rate = piece
        start, before = self._start_of(len(self._ends)), self._count_before(len(self._ends))
        self._counts.append(before + (rate * (until - start) if rate else 0.0))
        self._ends.append(until)
        self._rates.append(rate)
        return True

    def _start_of(self, place: int) -> float:
        return self._ends[place - 1] if place else 0.0

    def _count_before(self, place: int) -> float:
        return self._counts[place - 1] if place else 0.0
