"""The run's clock: the coordinator's monotonic clock, readable on any machine.

A device estimates the offset of its own clock from a few queries and uses the fastest answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["RunClock", "estimate_clock_offset"]

_QUERIES = 5


class RunClock:
    """Seconds since the run started; constant until then."""

    def __init__(self, initial_s: float = 0.0, offset: float = 0.0) -> None:
        self._initial_s = initial_s
        self._offset = offset  # coordinator's clock minus this machine's
        self.start_time: float | None = None

    def set_start_time(self, start_time: float) -> None:
        """Set the run's time 0, by the coordinator's clock."""
        self.start_time = start_time

    def start_now(self) -> float:
        """Start the clock and return the run's time 0; for the coordinator."""
        self.start_time = time.monotonic() + self._offset - self._initial_s
        return self.start_time

    def now(self) -> float:
        return self._initial_s if self.start_time is None else time.monotonic() + self._offset - self.start_time


def estimate_clock_offset(query_clock: Callable[[], float | None]) -> float:
    """How far the other clock is ahead of this one; the error is at most half the time of the fastest answer."""
    best = (float("inf"), 0.0)
    for _ in range(_QUERIES):
        started = time.monotonic()
        answer = query_clock()
        took = time.monotonic() - started
        if answer is not None:
            best = min(best, (took, answer - started - took / 2))
    return best[1]
