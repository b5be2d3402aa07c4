"""Token buckets: how often each source may do something. The caller says what time it is."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

__all__ = ["RateLimit", "RateLimiter"]

_MAX_SOURCES = 4096  # sources come from the network, so their number is not bounded


class RateLimit(NamedTuple):
    """At most `per_s` a second in the long run, and `burst` at once."""

    per_s: float
    burst: float


class RateLimiter:
    """One bucket per source; a source that was forgotten starts with a full one. May be used from any thread."""

    def __init__(self, limit: RateLimit, max_sources: int = _MAX_SOURCES) -> None:
        self._limit = limit
        self.max_sources = max_sources
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # source → tokens, when they were counted

    def take(self, source: str, now: float) -> bool:
        """Whether the source may go on; takes a token if so."""
        per_s, burst = self._limit
        with self._lock:
            tokens, counted_at = self._buckets.get(source, (burst, now))
            tokens = min(burst, tokens + (now - counted_at) * per_s)
            allowed = tokens >= 1.0
            self._buckets[source] = (tokens - 1.0 if allowed else tokens), now
            if len(self._buckets) > self.max_sources:
                self._buckets.popitem(last=False)
        return allowed
