"""Saying again what was not answered."""

from __future__ import annotations

import math
from collections.abc import Iterable

from potluck.loops.run_progress import TurnRecord

__all__ = ["RetryTimer"]

_SELDOM_S = 60.0  # the longest pause between two reminders


class RetryTimer:
    """When silent devices are asked again: after a pause, and each time after twice as long."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self.next_retry_at = math.inf

    def schedule_retry(self, turn: TurnRecord, now: float) -> None:
        """Something was said to the turn's device, which it should answer."""
        turn.retry_pause_s = self._pause
        turn.retry_at = now + turn.retry_pause_s
        self.next_retry_at = min(self.next_retry_at, turn.retry_at)

    def due_turns(self, silent: Iterable[TurnRecord], now: float) -> list[TurnRecord]:
        """Whom of the silent to remind now; the others, and these again, later."""
        reminded, self.next_retry_at = [], math.inf
        for turn in silent:
            if now >= turn.retry_at:
                turn.retry_pause_s = min(2 * turn.retry_pause_s, _SELDOM_S)
                turn.retry_at = now + turn.retry_pause_s
                reminded.append(turn)
            self.next_retry_at = min(self.next_retry_at, turn.retry_at)
        return reminded
