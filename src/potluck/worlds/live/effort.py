"""How long work takes on a device, and how fast it is at the moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from potluck.worlds.simulated.speed import Curve

__all__ = ["AsModelled", "Effort", "Natural"]

_KEPT = 0.5  # weight of what was measured before, against the newest step


class Effort(Protocol):
    """How long a stretch of work takes here."""

    def level(self) -> float:
        """The share of its nominal speed that the device has now; above 1 if it has more than the fleet file says."""

    def takes(self, began: float, seconds: float) -> float:
        """How long `seconds` on paper take that begin at `began` (run time)."""

    def stretched(self, began: float, spent: float, seconds: float) -> float:
        """How long a step takes that was done within `spent` really."""


class Natural:
    """As fast as the machine is, or a share of that; how fast it is now is told from what the last steps took.

    `allowed` says which part of the processor we may use at the moment. What was measured under another limit is
    converted, so that a new limit counts from the next step on and not only after it was felt.
    """

    def __init__(self, share: float = 1.0, allowed: Callable[[], float] = lambda: 1.0) -> None:
        assert 0 < share <= 1
        self._share = share
        self._allowed = allowed
        self._on_paper = self._of_whole_processor = 0.0  # seconds of the last steps, the newest weighing most

    def level(self) -> float:
        measured = self._on_paper / self._of_whole_processor if self._of_whole_processor else 1.0
        return self._share * self._allowed() * measured

    def takes(self, began: float, seconds: float) -> float:
        return seconds / self._share

    def stretched(self, began: float, spent: float, seconds: float) -> float:
        if spent > 0 and seconds > 0:
            self._on_paper = _KEPT * self._on_paper + seconds
            self._of_whole_processor = _KEPT * self._of_whole_processor + spent * self._allowed()
        return spent / self._share


class AsModelled:
    """As slow as the fleet file says the device is (never faster than the machine)."""

    def __init__(self, curve: Curve, now: Callable[[], float]) -> None:
        self._curve = curve
        self._now = now
        self._lock = threading.Lock()
        self._latest = 0.0

    def level(self) -> float:
        with self._lock:
            return self._curve.level(self._asked_at(self._now()))

    def takes(self, began: float, seconds: float) -> float:
        with self._lock:
            start = self._asked_at(began)
            return self._curve.finish(start, seconds) - start

    def stretched(self, began: float, spent: float, seconds: float) -> float:
        return max(self.takes(began, seconds), spent)

    def _asked_at(self, moment: float) -> float:
        """A curve is asked with times that never go back."""
        self._latest = max(self._latest, moment)
        return self._latest
