"""The run's clock, which is the coordinator's, read on any machine.

A device learns how far its own clock is off from a few questions; the quickest answer is the best one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["RunClock", "offset_to"]

_QUESTIONS = 5


class RunClock:
    """Seconds since the run began; stands still until it has."""

    def __init__(self, began_s: float = 0.0, offset: float = 0.0) -> None:
        self._still = began_s
        self._offset = offset  # what has to be added to this machine's clock to read the coordinator's
        self.zero: float | None = None

    def begin(self, zero: float) -> None:
        """The run's time 0, by the coordinator's clock."""
        self.zero = zero

    def begin_now(self) -> float:
        """Let the time go on from where it stands; for the coordinator. Gives the run's time 0."""
        self.zero = time.monotonic() + self._offset - self._still
        return self.zero

    def now(self) -> float:
        return self._still if self.zero is None else time.monotonic() + self._offset - self.zero


def offset_to(ask: Callable[[], float | None]) -> float:
    """How far the other clock is ahead of ours, up to half the time that the quickest answer took."""
    best = (float("inf"), 0.0)
    for _ in range(_QUESTIONS):
        asked = time.monotonic()
        told = ask()
        took = time.monotonic() - asked
        if told is not None:
            best = min(best, (took, told - asked - took / 2))
    return best[1]
