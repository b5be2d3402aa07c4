"""Takes complete updates in the order of merging, bounds their norms, and hands them to the model."""

from __future__ import annotations

import math
from collections.abc import Callable

from potluck.loops.leader import CoordinatorJournal
from potluck.loops.norm_bound import NormBound, NormVerdict
from potluck.loops.rounds_context import RoundsContext
from potluck.loops.turn_record import TurnRecord
from potluck.model.update_merging import FULL_LENGTH, UpdateNorm

__all__ = ["UpdateIntake"]

_MOST_HELD = 16  # first updates of a run, which are judged by each other
_MOST_HELD_BYTES = 512 << 20


class UpdateIntake:
    """Judges each update by the norms of recent ones. The first ones of a run are held until they can be compared."""

    def __init__(
        self, context: RoundsContext, journal: CoordinatorJournal, merge: Callable[[TurnRecord], None]
    ) -> None:
        self._context = context
        self._backend = context.backend
        self._settings = context.settings
        self._journal = journal
        self._merge = merge
        self._bound = NormBound(context.settings.norm_bound, context.progress.norms)
        self._held: list[TurnRecord] = []
        self._measured = (-1, FULL_LENGTH)  # a version, and the norms of its model

    def measure_update(self, turn: TurnRecord) -> str | None:
        """Measure a complete update; returns why it may not be merged, None if it may."""
        if not self._settings.norm_bound:
            return None
        turn.norm = self._backend.update_norm(turn.segments, turn.submodel)
        return None if turn.norm is None else self._bound.refusal(turn.device, turn.norm, self._longest())

    def add_update(self, turn: TurnRecord) -> None:
        """Merge an update, at once or with the first others."""
        if turn.norm is None:
            self._merge(turn)
        elif self._bound.has_history:
            self._merge_judged(turn, self._bound.judge_update(turn.device, turn.norm, self._longest()))
        else:
            self._held.append(turn)
            nbytes = sum(segment.payload.nbytes for held in self._held for segment in held.segments)
            if len(self._held) >= _MOST_HELD or nbytes >= _MOST_HELD_BYTES:
                self.merge_held()

    def merge_held(self) -> None:
        """Merge what is held: the round closes."""
        if not self._held:
            return
        held, self._held = self._held, []
        norms = [(turn.device, turn.norm) for turn in held if turn.norm is not None]
        for turn, verdict in zip(held, self._bound.judge_updates(norms, self._longest()), strict=True):
            self._merge_judged(turn, verdict)

    def _longest(self) -> UpdateNorm:
        """A step as long as the weights themselves, and buffers as long as the model's."""
        version = self._context.progress.version
        if self._measured[0] != version:
            self._measured = version, self._backend.weights_norm()
        params, buffers = self._measured[1]
        return UpdateNorm(params / self._settings.server.lr or math.inf, buffers or math.inf)

    def _merge_judged(self, turn: TurnRecord, verdict: NormVerdict) -> None:
        turn.scale = verdict.scale
        if verdict.is_clipped:
            self._context.progress.clipped += 1
            self._journal.record_event(turn.device, "clipped", norm=verdict.norm, bound=verdict.bound)
        self._merge(turn)
