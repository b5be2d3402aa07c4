"""How fast a peer takes what it is sent, and what follows from it: how long chunks are, how many are on their way at
once, when silence is odd.

On a slow link a long chunk would hold up everything behind it, heartbeats included, so chunks are as long as the link
carries in a tenth of a second. Deadlines follow what was observed: a pause is odd when it is several times as long as
the longest so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["PeerThroughput"]

_FIRST_CHUNK = 64 << 10  # while nothing is known of the link
_LEAST_CHUNK, _LONGEST_CHUNK = 16 << 10, 1 << 20
_CHUNK_SECONDS = 0.1
_LEAST_WINDOW, _LARGEST_WINDOW = 8, 16  # chunks
_WINDOW_SECONDS = 0.1
_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 0.5, 60.0
_ODD = 4.0  # times the longest pause
_WEIGHT = 0.2  # of the newest observation


class PeerThroughput:
    """What was seen of one peer."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._bytes_per_s: float | None = None
        self._heard_at = now()
        self._longest_pause_s = 0.0

    def start_timing(self) -> None:
        """Something is put on its way: what lies before was not the peer's silence."""
        self._heard_at = self._now()

    def record_confirmed(self, nbytes: int) -> None:
        """So many bytes have got there since the last time."""
        moment = self._now()
        pause, self._heard_at = moment - self._heard_at, moment
        if nbytes <= 0 or pause <= 0:
            return
        self._longest_pause_s = max(pause, 0.9 * self._longest_pause_s)
        seen = nbytes / pause
        self._bytes_per_s = seen if self._bytes_per_s is None else (1 - _WEIGHT) * self._bytes_per_s + _WEIGHT * seen

    def chunk_bytes(self) -> int:
        """How long the chunks of the next message should be."""
        if self._bytes_per_s is None:
            return _FIRST_CHUNK
        return int(min(max(self._bytes_per_s * _CHUNK_SECONDS, _LEAST_CHUNK), _LONGEST_CHUNK))

    def window_chunks(self, chunk_bytes: int) -> int:
        """How many chunks of that length may be on their way unconfirmed: more only where they are through at once."""
        carried = (self._bytes_per_s or 0.0) * _WINDOW_SECONDS / chunk_bytes
        return int(min(max(carried, _LEAST_WINDOW), _LARGEST_WINDOW))

    def status_timeout_s(self, silent: float) -> float:
        """How long to wait for a word, having waited for `silent` in vain: longer and longer."""
        usual = max(_LEAST_PATIENCE_S, _ODD * self._longest_pause_s)
        return min(max(usual, silent), _MOST_PATIENCE_S)
