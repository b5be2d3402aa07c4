"""The batch timer: it notices who is connected and does not work.

    a batch ──▶ nothing for 4 times the usual ──▶ Inquire ──▶ Doing, from each stage
                                                    │             └─ awaits what was sent, twice: a link is broken
                                                    └─ no sign of life for 8 times the usual: left out

What is usual follows what was seen, mean and spread, so a fleet that is merely slow is asked late and answers; a lost
message is sent again meanwhile. Where all this leads nowhere, a new term begins.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from potluck.loops.pipeline.messages import Doing
from potluck.loops.pipeline.pipeline_planner import PipelinePlan

__all__ = ["BatchTimer"]

_ASK, _ANSWER, _STALL = 4, 8, 20  # times what is usual
_FORGETS = 0.1
_SPREADS = 2  # beside the mean, which batches commonly take


class BatchTimer:
    """How long batches take, since when none came, and what the stages say to that."""

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self.mean_s = 0.0  # between two batches
        self._spread_s = 0.0
        self._period_s = 0.0
        self._last_batch_at = 0.0
        self._inquiry_began_at = math.inf
        self._order: tuple[str, ...] = ()
        self._contacted: set[str] = set()
        self._answers: dict[str, Doing] = {}
        self._previous_answers: dict[str, Doing] = {}

    @property
    def usual_batch_s(self) -> float:
        """What a batch may take without anybody wondering."""
        return max(self._retry_s, self.mean_s + _SPREADS * self._spread_s, self._period_s)

    def observe_interval(self, seconds: float) -> None:
        """So long it took from a batch to the next."""
        off = abs(seconds - self.mean_s) if self.mean_s else 0.0
        self._spread_s = (1 - _FORGETS) * self._spread_s + _FORGETS * off
        self.mean_s = (1 - _FORGETS) * self.mean_s + _FORGETS * seconds if self.mean_s else seconds

    def begin_range(self, plan: PipelinePlan, now: float) -> None:
        """A stretch begins; the first batch has all stages before it."""
        self._order, self._period_s = plan.order, plan.period
        self.record_batch(now + len(plan.order) * plan.period)

    def record_batch(self, now: float) -> None:
        """A stage has got a batch done."""
        self._last_batch_at, self._inquiry_began_at = now, math.inf
        self._answers = {}

    # --- asking ----------------------------------------------------------------------------------------------------

    @property
    def next_check_at(self) -> float:
        """When to look at it again."""
        if math.isinf(self._inquiry_began_at):
            return self._last_batch_at + _ASK * self.usual_batch_s
        wait = _ASK if set(self._order) <= self._answers.keys() else _ANSWER
        return min(self._inquiry_began_at + wait * self.usual_batch_s, self._stall_deadline)

    @property
    def _stall_deadline(self) -> float:
        return self._last_batch_at + _STALL * self.usual_batch_s

    def has_stalled(self, now: float) -> bool:
        """Whether neither asking nor sending again was of use."""
        return now >= self._stall_deadline

    def begin_inquiry(self, now: float) -> None:
        """A round of questions begins."""
        self._inquiry_began_at = now
        self._contacted, self._previous_answers, self._answers = set(), self._answers, {}

    @property
    def is_inquiring(self) -> bool:
        return not math.isinf(self._inquiry_began_at)

    def record_contact(self, device: str) -> None:
        """Any word is a sign of life."""
        self._contacted.add(device)

    def record_answer(self, device: str, doing: Doing) -> None:
        """The answer of a stage."""
        self._answers[device] = doing

    def unanswered_stages(self, here: Collection[str]) -> list[str]:
        return [device for device in self._order if device in here and device not in self._answers]

    def silent_stages(self, here: Collection[str]) -> list[str]:
        """Who gave no sign of life since it was asked; nobody, where all are silent: then it is our own link."""
        asked = [device for device in self._order if device in here]
        found = [device for device in asked if device not in self._contacted]
        return found if len(found) < len(asked) else []

    def find_broken_link(self) -> tuple[str, str] | None:
        """Two stages whose link is broken, the later one first: one waits all the time for what the other has sent."""
        for receiver in self._order:
            for giver, what, part in self._lasting_waits(receiver):
                if all((what, part) in _sent_messages(said, giver) for said in (self._previous_answers, self._answers)):
                    earlier, later = sorted((giver, receiver), key=self._order.index)
                    return later, earlier
        return None

    def _lasting_waits(self, device: str) -> list[tuple[str, str, int]]:
        """What a stage has waited for since it was asked before."""
        before, now = self._previous_answers.get(device), self._answers.get(device)
        return [] if before is None or now is None else [each for each in now.awaits if each in before.awaits]


def _sent_messages(said: dict[str, Doing], device: str) -> Collection[tuple[str, int]]:
    return said[device].sent if device in said else ()
