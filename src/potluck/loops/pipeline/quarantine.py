"""Devices that are connected and were left out: each is asked back after a while, a longer one each time."""

from __future__ import annotations

import math
from collections import Counter

__all__ = ["Quarantine"]

_LONGEST = 6  # doublings


class Quarantine:
    """Who was left out, and when each is asked back."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._pause: dict[str, float] = {}
        self._retry_at: dict[str, float] = {}

    def __contains__(self, device: object) -> bool:
        return device in self._retry_at

    @property
    def next_retry_at(self) -> float:
        return min(self._retry_at.values(), default=math.inf)

    def add_device(self, device: str, now: float, pause_s: float) -> None:
        """Leave a device out for this long, and for twice as long each further time."""
        self._pause[device] = pause_s * 2.0 ** min(self._times[device], _LONGEST)
        self._times[device] += 1
        self._retry_at[device] = now + self._pause[device]

    def due_devices(self, now: float) -> list[str]:
        """Whom to ask back now; if it does not answer, it is asked again after the same pause."""
        found = [device for device, at in self._retry_at.items() if at <= now]
        for device in found:
            self._retry_at[device] = now + self._pause[device]
        return found

    def release_device(self, device: str) -> bool:
        """Whether it was left out until now."""
        return self._retry_at.pop(device, None) is not None

    def forget_device(self, device: str) -> None:
        """It is gone, or in another life."""
        self._retry_at.pop(device, None)
        self._times.pop(device, None)
