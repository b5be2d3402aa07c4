"""How long a round waits for a device of which nothing is heard, however well its heartbeats arrive.

    invited ──▶ heard of ──▶ nothing for its patience ──▶ left out: Release (idle) ──▶ … ──▶ Released: invited again

A hung step looks alive: heartbeats have a thread of their own. So a device is judged by what arrives of its turn. Its
patience follows its own turns: eight times their median plus three median absolute deviations. Before a device has
completed three, five minutes or eight times the forecast, whichever is longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from potluck.loops.parts.barrier import late_after_s
from potluck.loops.rounds_context import RoundsContext
from potluck.loops.turn_record import TurnRecord

__all__ = ["TurnPatience"]

_FACTOR = 8.0
_DEVIATIONS = 3.0
_DURATIONS_KEPT = 8  # of each device
_LEAST_RETRIES = 6  # times `retry`: the least patience that turns can teach
_FIRST_S = 300.0  # while a device's turns are not known


class TurnPatience:
    """The deadlines of all open turns. Each moves on whenever something of its turn arrives."""

    def __init__(self, context: RoundsContext) -> None:
        self._context = context
        self._durations = context.progress.turn_durations
        bound = context.settings.turn_patience
        self._bound_s = math.inf if bound is None else float(bound)
        self._least_s = min(_LEAST_RETRIES * float(context.settings.retry), self._bound_s)
        self._patience_s: dict[str, float] = {}  # of devices whose turns have not taught another one since
        self.next_check_at = math.inf  # no turn is overdue before

    def observe_turn(self, device: str, seconds: float) -> None:
        """Learn how long a device's turn took, from invitation to update."""
        durations = self._durations.setdefault(device, [])
        durations.append(seconds)
        del durations[:-_DURATIONS_KEPT]
        self._patience_s.pop(device, None)

    def patience_s(self, device: str) -> float:
        """How long a device may be silent about its turn."""
        if device not in self._patience_s:
            usual_s = late_after_s(self._durations.get(device, ()), _DEVIATIONS)
            if math.isinf(usual_s):
                wait_s = max(_FACTOR * self._context.expected_turn_s(device), _FIRST_S)
            else:
                wait_s = max(_FACTOR * usual_s, self._least_s)
            self._patience_s[device] = min(wait_s, self._bound_s)
        return self._patience_s[device]

    def watch_turn(self, turn: TurnRecord, now: float) -> None:
        """An answer to this turn is due from now on."""
        turn.heard_at = now
        self.next_check_at = min(self.next_check_at, now + self._least_s)

    def overdue_turns(self, turns: Iterable[TurnRecord], now: float) -> list[TurnRecord]:
        """The turns of which nothing was heard for too long; while the model is being sent to a device, it may wait."""
        overdue, self.next_check_at = [], math.inf
        for turn in turns:
            if turn.is_sending:
                turn.heard_at = now
            due_at = turn.heard_at + self._least_s
            if due_at <= now:
                due_at = turn.heard_at + self.patience_s(turn.device)
            if due_at <= now:
                overdue.append(turn)
            else:
                self.next_check_at = min(self.next_check_at, due_at)
        return overdue
