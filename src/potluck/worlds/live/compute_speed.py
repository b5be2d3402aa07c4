"""How long work takes on a device, and how fast the device is at present: measured, or as the fleet file says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from potluck.fleet.speed_curve import SpeedCurve

__all__ = ["ComputeSpeed", "MeasuredSpeed", "ModelledSpeed"]

_OLD_WEIGHT = 0.5  # of earlier measurements, relative to the newest step


class ComputeSpeed(Protocol):
    """How long work takes on this device."""

    def current_speed(self) -> float:
        """The present speed as a fraction of the nominal one; above 1 if the device is faster than declared."""

    def modelled_duration_s(self, start: float, seconds: float) -> float:
        """How long work of `seconds` at nominal speed takes if it starts at `start` (run time)."""

    def throttled_duration_s(self, start: float, spent_s: float, seconds: float) -> float:
        """How long a step of `seconds` at nominal speed should take that really took `spent_s`."""


class MeasuredSpeed:
    """As fast as the machine is, or the fraction `throttle` of that; the current speed follows from the last steps.

    `cpu_fraction` returns the fraction of the processor that this process may use at present. Measurements are
    normalised by it, so that a new limit takes effect immediately and not only after the next steps.
    """

    def __init__(self, throttle: float = 1.0, cpu_fraction: Callable[[], float] = lambda: 1.0) -> None:
        assert 0 < throttle <= 1
        self._throttle = throttle
        self._cpu_fraction = cpu_fraction
        self._nominal_s = self._full_cpu_s = 0.0  # of the last steps, weighted towards the newest

    def current_speed(self) -> float:
        measured = self._nominal_s / self._full_cpu_s if self._full_cpu_s else 1.0
        return self._throttle * self._cpu_fraction() * measured

    def modelled_duration_s(self, start: float, seconds: float) -> float:
        return seconds / self._throttle

    def throttled_duration_s(self, start: float, spent_s: float, seconds: float) -> float:
        if spent_s > 0 and seconds > 0:
            self._nominal_s = _OLD_WEIGHT * self._nominal_s + seconds
            self._full_cpu_s = _OLD_WEIGHT * self._full_cpu_s + spent_s * self._cpu_fraction()
        return spent_s / self._throttle


class ModelledSpeed:
    """As fast as the fleet file says the device is, but never faster than the machine."""

    def __init__(self, curve: SpeedCurve, now: Callable[[], float]) -> None:
        self._curve = curve
        self._now = now
        self._lock = threading.Lock()
        self._latest_time = 0.0

    def current_speed(self) -> float:
        with self._lock:
            return self._curve.speed_at(self._monotonic_time(self._now()))

    def modelled_duration_s(self, start: float, seconds: float) -> float:
        with self._lock:
            start_s = self._monotonic_time(start)
            return self._curve.finish_time(start_s, seconds) - start_s

    def throttled_duration_s(self, start: float, spent_s: float, seconds: float) -> float:
        return max(self.modelled_duration_s(start, seconds), spent_s)

    def _monotonic_time(self, now: float) -> float:
        """A SpeedCurve must be queried with non-decreasing times."""
        self._latest_time = max(self._latest_time, now)
        return self._latest_time
