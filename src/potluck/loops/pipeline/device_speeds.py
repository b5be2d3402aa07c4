"""How much slower than nominal each device computes, and whether that has just changed."""

from __future__ import annotations

from potluck.planning.online_estimates import ChangeDetector

__all__ = ["DeviceSpeeds"]

_FORGETS = 0.3


class DeviceSpeeds:
    """Means of measured over nominal seconds, which forget at once when a device has changed."""

    def __init__(self, slowness: dict[str, float]) -> None:
        self._slowness = slowness
        self._surprises: dict[str, ChangeDetector] = {}

    def observe_batch(self, device: str, nominal_s: float, seconds: float) -> bool:
        """Take in one batch's time; whether the device is another than it was."""
        if nominal_s <= 0 or seconds <= 0:
            return False
        seen = seconds / nominal_s
        before = self._slowness.setdefault(device, 1.0)
        if self._surprises.setdefault(device, ChangeDetector()).detect_change(before, seen):
            self._slowness[device] = seen
            return True
        self._slowness[device] = before + _FORGETS * (seen - before)
        return False

    def forget_device(self, device: str) -> None:
        """A device that left may come back as another."""
        self._slowness.pop(device, None)
        self._surprises.pop(device, None)
