"""Saying again what was not answered."""

from __future__ import annotations

import math
from collections.abc import Iterable

from potluck.loops.progress import Turn

__all__ = ["Reminders"]

_SELDOM_S = 60.0  # the longest pause between two reminders


class Reminders:
    """When silent devices are asked again: after a pause, and each time after twice as long."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self.next_at = math.inf

    def watch(self, turn: Turn, now: float) -> None:
        """Something was said to the turn's device, which it should answer."""
        turn.pause = self._pause
        turn.nudge_at = now + turn.pause
        self.next_at = min(self.next_at, turn.nudge_at)

    def due(self, silent: Iterable[Turn], now: float) -> list[Turn]:
        """Whom of the silent to remind now; the others, and these again, later."""
        reminded, self.next_at = [], math.inf
        for turn in silent:
            if now >= turn.nudge_at:
                turn.pause = min(2 * turn.pause, _SELDOM_S)
                turn.nudge_at = now + turn.pause
                reminded.append(turn)
            self.next_at = min(self.next_at, turn.nudge_at)
        return reminded
