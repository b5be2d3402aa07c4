"""The run's clock, which is the coordinator's, read on any machine.

A device learns how far its own clock is off from a few questions; the quickest answer is the best one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["RunClock", "estimate_clock_offset"]

_QUESTIONS = 5


class RunClock:
    """Seconds since the run began; stands still until it has."""

    def __init__(self, began_s: float = 0.0, offset: float = 0.0) -> None:
        self._initial_s = began_s
        self._offset = offset  # what has to be added to this machine's clock to read the coordinator's
        self.start_time: float | None = None

    def set_start_time(self, zero: float) -> None:
        """The run's time 0, by the coordinator's clock."""
        self.start_time = zero

    def start_now(self) -> float:
        """Let the time go on from where it stands; for the coordinator. Gives the run's time 0."""
        self.start_time = time.monotonic() + self._offset - self._initial_s
        return self.start_time

    def now(self) -> float:
        return self._initial_s if self.start_time is None else time.monotonic() + self._offset - self.start_time


def estimate_clock_offset(ask: Callable[[], float | None]) -> float:
    """How far the other clock is ahead of ours, up to half the time that the quickest answer took."""
    best = (float("inf"), 0.0)
    for _ in range(_QUESTIONS):
        asked = time.monotonic()
        told = ask()
        took = time.monotonic() - asked
        if told is not None:
            best = min(best, (took, told - asked - took / 2))
    return best[1]
