"""A queue of rising sequence numbers held as runs, so that a million samples in a row cost as little as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Numbers", "RangeQueue", "Run"]

Numbers = npt.NDArray[np.int64]
Run = tuple[int, int]


class RangeQueue:
    """Numbers from oldest to newest; a run is (first, one past the last)."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs: deque[Run] = deque()
        self._count = 0
        for start, stop in runs:
            self.append_range(start, stop)

    @staticmethod
    def from_numbers(numbers: Numbers) -> RangeQueue:
        """Numbers that rise, put together to runs."""
        if not len(numbers):
            return RangeQueue()
        last = np.flatnonzero(np.diff(numbers) != 1)
        starts, stops = numbers[[0, *(last + 1)]], numbers[[*last, -1]] + 1
        return RangeQueue(zip(starts.tolist(), stops.tolist(), strict=True))

    def __len__(self) -> int:
        return self._count

    def list_ranges(self) -> list[Run]:
        return list(self._runs)

    def append_range(self, start: int, stop: int) -> None:
        """Append numbers that are higher than all in the queue."""
        if start >= stop:
            return
        assert not self._runs or self._runs[-1][1] <= start, "numbers must rise"
        self._count += stop - start
        if self._runs and self._runs[-1][1] == start:
            start = self._runs.pop()[0]
        self._runs.append((start, stop))

    def all_numbers(self) -> Numbers:
        return _expand_ranges(self.list_ranges())

    def pop_oldest(self, count: int) -> Numbers:
        return _expand_ranges(self.cut_oldest(count))

    def cut_oldest(self, count: int) -> list[Run]:
        """Take away the `count` oldest, without spelling them out."""
        assert 0 <= count <= self._count
        self._count -= count
        gone: list[Run] = []
        while count > 0:
            start, stop = self._runs.popleft()
            middle = min(stop, start + count)
            gone.append((start, middle))
            count -= middle - start
            if middle < stop:
                self._runs.appendleft((middle, stop))
        return gone


def _expand_ranges(runs: Sequence[Run]) -> Numbers:
    if not runs:
        return np.zeros(0, np.int64)
    starts, stops = np.array(runs, np.int64).T
    lengths = stops - starts
    before = np.cumsum(lengths) - lengths
    numbers: Numbers = np.arange(lengths.sum(), dtype=np.int64) + np.repeat(starts - before, lengths)
    return numbers
