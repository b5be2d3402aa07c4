"""Estimates the rate of a live stream from its arrivals, by an exponentially decaying count."""

from __future__ import annotations

import math

__all__ = ["ArrivalRate"]


class ArrivalRate:
    """Samples per second over about the last `memory_s` seconds, in constant memory."""

    def __init__(self, memory_s: float = 5.0) -> None:
        self._memory = memory_s
        self._count = 0.0
        self._seen = math.nan
        self._began = math.nan

    def count_arrival(self, now: float) -> None:
        if math.isnan(self._began):  # the first arrival only starts the clock
            self._began = self._seen = now
            return
        self._count = self._decayed_count(now) + 1.0
        self._seen = now

    def rate_at(self, now: float) -> float:
        """The decayed count, divided by what a steady stream of 1/s would have counted in the same time."""
        if math.isnan(self._began) or now <= self._began:
            return 0.0
        full = self._memory * -math.expm1((self._began - now) / self._memory)
        return self._decayed_count(now) / full

    def _decayed_count(self, now: float) -> float:
        return self._count * math.exp((self._seen - now) / self._memory)
