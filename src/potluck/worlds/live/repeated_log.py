"""Logs what may repeat thousands of times a second: once at first, then at most once a minute with a count."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from potluck.text_escaping import escape_text

__all__ = ["RepeatedLog"]

_INTERVAL_S = 60.0
_MAX_SUBJECTS = 256  # subjects come from the network, so their number is not bounded
_MAX_LENGTH = 500


@dataclass
class _Subject:
    logged_at: float
    text: str = ""
    unlogged: int = 0


class RepeatedLog:
    """One line per subject (a device, an address) and minute; may be used from any thread."""

    def __init__(self, log: Callable[..., object], now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now = now
        self._lock = threading.Lock()
        self._subjects: dict[str, _Subject] = {}

    def add(self, subject: str, text: str, count: int = 1) -> None:
        """Something happened `count` times; it is logged now or counted for the subject's next line."""
        with self._lock:
            known = self._subjects.get(subject)
            if known is None:
                if len(self._subjects) >= _MAX_SUBJECTS:
                    self._subjects.pop(next(iter(self._subjects)))
                known = self._subjects[subject] = _Subject(self._now() - _INTERVAL_S)
            known.text, known.unlogged = text, known.unlogged + count
            self._log_if_due(known)

    def flush(self, *, at_once: bool = False) -> None:
        """Log the counts that are due, or all of them."""
        with self._lock:
            for known in self._subjects.values():
                if known.unlogged:
                    self._log_if_due(known, at_once=at_once)

    def _log_if_due(self, known: _Subject, *, at_once: bool = False) -> None:
        if at_once or self._now() - known.logged_at >= _INTERVAL_S:
            times = f" ({known.unlogged:,} times)" if known.unlogged > 1 else ""
            self._log("%s%s", escape_text(known.text, _MAX_LENGTH), times)
            known.logged_at, known.unlogged = self._now(), 0
