"""Decides when to repeat a request that was not answered: after a pause that doubles each time."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

__all__ = ["RetryTimer"]

_MAX_PAUSE_S = 60.0

K = TypeVar("K", bound=Hashable)


class RetryTimer(Generic[K]):
    """One schedule per request; the caller says which requests are still unanswered."""

    def __init__(self, first_pause_s: float, max_pause_s: float = _MAX_PAUSE_S) -> None:
        self._first_pause_s = first_pause_s
        self._max_pause_s = max_pause_s
        self._schedules: dict[K, tuple[float, float]] = {}  # when it is due, and the pause after that
        self.next_retry_at = math.inf

    def schedule_first(self, request: K, now: float) -> None:
        """The request is yet to be sent: it is due now."""
        self._add_schedule(request, now, self._first_pause_s)

    def schedule_retry(self, request: K, now: float) -> None:
        """The request was just sent: it is due again after the first pause."""
        self._add_schedule(request, now + self._first_pause_s, min(2 * self._first_pause_s, self._max_pause_s))

    def _add_schedule(self, request: K, due_at: float, pause_s: float) -> None:
        self._schedules[request] = due_at, pause_s
        self.next_retry_at = min(self.next_retry_at, due_at)

    def due_requests(self, unanswered: Iterable[K], now: float) -> list[K]:
        """The unanswered requests to send now. Any other request is forgotten."""
        due, schedules = [], {}
        for request in unanswered:
            due_at, pause_s = self._schedules[request]
            if now >= due_at:
                due.append(request)
                due_at, pause_s = now + pause_s, min(2 * pause_s, self._max_pause_s)
            schedules[request] = due_at, pause_s
        self._schedules = schedules
        self.next_retry_at = min((due_at for due_at, _ in schedules.values()), default=math.inf)
        return due
