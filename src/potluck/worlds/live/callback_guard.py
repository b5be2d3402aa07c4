"""The floor under all handlers of what peers send: an exception that no check foresaw becomes a counted refusal.

Zenoh calls handlers on its own threads and prints a traceback for whatever they raise. A peer must not be able to cause
that, so every handler is wrapped here; the checks that come first give better reasons.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from potluck.text_escaping import escape_text

__all__ = ["guard_callback", "is_local_error", "unexpected_reason"]

T = TypeVar("T")

_LOG_EVERY_S = 60.0
_MAX_CHARS = 300

_log = logging.getLogger("potluck")


def guard_callback(handler: Callable[[T], None], refuse: Callable[[T, str], None] | None = None) -> Callable[[T], None]:
    """The handler, except that an exception is passed to `refuse` (what was handled, reason) or counted and logged.

    Errors of this machine (no memory, no file) are nobody's offence and are only logged.
    """
    log = _ErrorLog(handler.__name__.strip("_").replace("_", " "))

    def guarded(item: T) -> None:
        try:
            handler(item)
        except Exception as error:
            _log.debug("unexpected", exc_info=True)
            if refuse is None or is_local_error(error):
                log.count_error(unexpected_reason(error))
            else:
                refuse(item, unexpected_reason(error))

    return guarded


def unexpected_reason(error: Exception) -> str:
    """The reason of a refusal that only an exception tells."""
    return escape_text(f"it cannot be handled ({type(error).__name__}: {error})", _MAX_CHARS)


def is_local_error(error: Exception) -> bool:
    """Whether this machine is at fault and not what the peer sent."""
    return isinstance(error, OSError | MemoryError)


class _ErrorLog:
    """Counts exceptions, and logs the first of every minute with their number."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0
        self._logged_at = -_LOG_EVERY_S
        self._lock = threading.Lock()

    def count_error(self, reason: str) -> None:
        with self._lock:
            self._count += 1
            now = time.monotonic()
            if now - self._logged_at < _LOG_EVERY_S:
                return
            self._logged_at = now
        _log.warning("dropped a message (%s, %d so far): %s", self._what, self._count, reason)
