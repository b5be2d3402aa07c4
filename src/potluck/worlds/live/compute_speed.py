"""How long work takes on a device, and how fast it is at the moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from potluck.fleet.speed_curve import SpeedCurve

__all__ = ["ComputeSpeed", "MeasuredSpeed", "ModelledSpeed"]

_KEPT = 0.5  # weight of what was measured before, against the newest step


class ComputeSpeed(Protocol):
    """How long a stretch of work takes here."""

    def current_speed(self) -> float:
        """The share of its nominal speed that the device has now; above 1 if it has more than the fleet file says."""

    def modelled_duration_s(self, began: float, seconds: float) -> float:
        """How long `seconds` on paper take that begin at `began` (run time)."""

    def throttled_duration_s(self, began: float, spent: float, seconds: float) -> float:
        """How long a step takes that was done within `spent` really."""


class MeasuredSpeed:
    """As fast as the machine is, or a share of that; how fast it is now is told from what the last steps took.

    `allowed` says which part of the processor we may use at the moment. What was measured under another limit is
    converted, so that a new limit counts from the next step on and not only after it was felt.
    """

    def __init__(self, share: float = 1.0, allowed: Callable[[], float] = lambda: 1.0) -> None:
        assert 0 < share <= 1
        self._throttle = share
        self._cpu_fraction = allowed
        self._nominal_s = self._full_cpu_s = 0.0  # seconds of the last steps, the newest weighing most

    def current_speed(self) -> float:
        measured = self._nominal_s / self._full_cpu_s if self._full_cpu_s else 1.0
        return self._throttle * self._cpu_fraction() * measured

    def modelled_duration_s(self, began: float, seconds: float) -> float:
        return seconds / self._throttle

    def throttled_duration_s(self, began: float, spent: float, seconds: float) -> float:
        if spent > 0 and seconds > 0:
            self._nominal_s = _KEPT * self._nominal_s + seconds
            self._full_cpu_s = _KEPT * self._full_cpu_s + spent * self._cpu_fraction()
        return spent / self._throttle


class ModelledSpeed:
    """As slow as the fleet file says the device is (never faster than the machine)."""

    def __init__(self, curve: SpeedCurve, now: Callable[[], float]) -> None:
        self._curve = curve
        self._now = now
        self._lock = threading.Lock()
        self._latest_time = 0.0

    def current_speed(self) -> float:
        with self._lock:
            return self._curve.speed_at(self._monotonic_time(self._now()))

    def modelled_duration_s(self, began: float, seconds: float) -> float:
        with self._lock:
            start = self._monotonic_time(began)
            return self._curve.finish_time(start, seconds) - start

    def throttled_duration_s(self, began: float, spent: float, seconds: float) -> float:
        return max(self.modelled_duration_s(began, seconds), spent)

    def _monotonic_time(self, moment: float) -> float:
        """A curve is asked with times that never go back."""
        self._latest_time = max(self._latest_time, moment)
        return self._latest_time
