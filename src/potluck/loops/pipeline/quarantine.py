"""Keeps unresponsive devices out of the layout and retries them with exponential backoff."""

from __future__ import annotations

import math
from collections import Counter, deque

__all__ = ["Quarantine"]

_MAX_DOUBLINGS = 6
_FLAPPING_LOSSES, _FLAPPING_WINDOW_S = 5, 60.0  # a device lost this often within this time is unreliable


class Quarantine:
    """Which connected devices are left out, and when each is contacted again."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._pause: dict[str, float] = {}
        self._retry_at: dict[str, float] = {}
        self._losses: dict[str, deque[float]] = {}  # when each device was lost lately

    def __contains__(self, device: object) -> bool:
        return device in self._retry_at

    @property
    def next_retry_at(self) -> float:
        return min(self._retry_at.values(), default=math.inf)

    def add_device(self, device: str, now: float, pause_s: float) -> None:
        """Leave a device out for this long, and for twice as long each further time."""
        self._pause[device] = pause_s * 2.0 ** min(self._times[device], _MAX_DOUBLINGS)
        self._times[device] += 1
        self._retry_at[device] = now + self._pause[device]

    def due_devices(self, now: float) -> list[str]:
        """The devices to contact now; one that does not answer is due again after the same pause."""
        due = [device for device, at in self._retry_at.items() if at <= now]
        for device in due:
            self._retry_at[device] = now + self._pause[device]
        return due

    def release_device(self, device: str) -> bool:
        """Whether the device was left out until now."""
        return self._retry_at.pop(device, None) is not None

    def forget_device(self, device: str) -> None:
        """The device is gone, or back in a new incarnation."""
        self._retry_at.pop(device, None)
        self._times.pop(device, None)

    def record_loss(self, device: str, now: float) -> None:
        self._losses.setdefault(device, deque(maxlen=_FLAPPING_LOSSES)).append(now)

    def is_flapping(self, device: str, now: float) -> bool:
        """Whether a device was lost so often lately that its return would only disturb the run."""
        losses = self._losses.get(device)
        return losses is not None and len(losses) == _FLAPPING_LOSSES and now - losses[0] < _FLAPPING_WINDOW_S
