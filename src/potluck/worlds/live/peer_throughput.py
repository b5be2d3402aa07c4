"""Measures the throughput to a peer and derives chunk size, window and timeouts from it.

On a slow link a long chunk would delay everything behind it, heartbeats included, so a chunk is what the link carries
in a tenth of a second. Timeouts follow the observed progress: a status request is due after several times the longest
pause so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["PeerThroughput"]

_INITIAL_CHUNK = 64 << 10  # until the throughput is known
_MIN_CHUNK, _MAX_CHUNK = 16 << 10, 1 << 20
_CHUNK_S = 0.1
_MIN_WINDOW, _MAX_WINDOW = 8, 16  # chunks
_WINDOW_S = 0.1
_AHEAD_S = 0.05  # longer than a round trip on most links, which hides the wait
_MIN_TIMEOUT_S, _MAX_TIMEOUT_S = 0.5, 60.0
_PAUSE_FACTOR = 4.0  # timeout as a multiple of the longest pause
_KEPT_WEIGHT = 0.8  # of what was observed before a confirmation


class PeerThroughput:
    """What was observed of one peer."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._confirmed_bytes = 0.0  # both sums fade, so that the rate is that of the last few confirmations
        self._waited_s = 0.0
        self._heard_at = now()
        self._longest_pause_s = 0.0

    def start_timing(self) -> None:
        """A message starts: the time before it does not count as a pause."""
        self._heard_at = self._now()

    def record_confirmed(self, nbytes: int) -> None:
        """`nbytes` more have arrived since the last call."""
        now_s = self._now()
        pause, self._heard_at = now_s - self._heard_at, now_s
        if nbytes <= 0 or pause < 0:
            return
        self._longest_pause_s = max(pause, 0.9 * self._longest_pause_s)
        self._confirmed_bytes = _KEPT_WEIGHT * self._confirmed_bytes + nbytes
        self._waited_s = _KEPT_WEIGHT * self._waited_s + pause

    @property
    def _bytes_per_s(self) -> float | None:
        """Bytes over time, not a mean of rates: confirmations that arrive together would count as a fast link."""
        return self._confirmed_bytes / self._waited_s if self._waited_s > 0 else None

    def chunk_bytes(self) -> int:
        """The chunk size for the next message."""
        if self._bytes_per_s is None:
            return _INITIAL_CHUNK
        return int(min(max(self._bytes_per_s * _CHUNK_S, _MIN_CHUNK), _MAX_CHUNK))

    def window_chunks(self, chunk_bytes: int) -> int:
        """How many chunks of that size may be unconfirmed; more only on a fast link."""
        chunks = (self._bytes_per_s or 0.0) * _WINDOW_S / chunk_bytes
        return int(min(max(chunks, _MIN_WINDOW), _MAX_WINDOW))

    def bytes_ahead(self) -> float:
        """How much of earlier messages may be unconfirmed when the next one is chosen; unlimited until known."""
        return math.inf if self._bytes_per_s is None else self._bytes_per_s * _AHEAD_S

    def status_timeout_s(self, silent_s: float) -> float:
        """How long to wait before the next status request after `silent_s` without an answer; grows with it."""
        usual = max(_MIN_TIMEOUT_S, _PAUSE_FACTOR * self._longest_pause_s)
        return min(max(usual, silent_s), _MAX_TIMEOUT_S)
