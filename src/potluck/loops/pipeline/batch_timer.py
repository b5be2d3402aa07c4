"""Notices stages that are connected but make no progress.

    a batch ──▶ none for 4 times the usual ──▶ Inquire ──▶ Doing, from each stage
                                                 │             ├─ it twice awaits what was sent: a broken link
                                                 │             └─ it computes the same pass all the time: it hangs
                                                 └─ no message for 12 times the usual: quarantine

The usual time follows the observed mean and spread, so a fleet that is merely slow is asked late and answers. Where
batches are quick it is a quarter of `retry`; but a link is only broken, and a term only stalled, after several times
`retry`, since a lost message is sent again meanwhile. If nothing helps, a new term begins.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from potluck.loops.pipeline.messages import Doing
from potluck.loops.pipeline.pipeline_planner import PipelinePlan

__all__ = ["BatchTimer"]

_INQUIRY_FACTOR, _LINK_FACTOR, _HANG_FACTOR = 4, 6, 6  # times the usual batch time
_SILENCE_FACTOR, _STALL_FACTOR = 12, 20
_LEAST_RETRIES = 0.25  # times `retry`: the least time that is usual
_GAIN = 0.1  # weight of the newest interval in the running means
_SPREADS = 2  # mean deviations above the mean that are still usual


class BatchTimer:
    """How long batches take, since when none was done, and what the stages answer."""

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
        # What each stage computes since the batch before, and when it first said so.
        self._computing: dict[str, tuple[tuple[int, tuple[str, int]], float]] = {}

    @property
    def usual_batch_s(self) -> float:
        """The longest time that is usual for a batch."""
        return max(_LEAST_RETRIES * self._retry_s, self.mean_s + _SPREADS * self._spread_s, self._period_s)

    @property
    def _patient_batch_s(self) -> float:
        """The same, but time enough to send a lost message again."""
        return max(self._retry_s, self.usual_batch_s)

    def observe_interval(self, seconds: float) -> None:
        """Learn the time from one committed batch to the next."""
        deviation = abs(seconds - self.mean_s) if self.mean_s else 0.0
        self._spread_s = (1 - _GAIN) * self._spread_s + _GAIN * deviation
        self.mean_s = (1 - _GAIN) * self.mean_s + _GAIN * seconds if self.mean_s else seconds

    def begin_range(self, plan: PipelinePlan, now: float) -> None:
        """A range begins; its first batch must pass all stages."""
        self._order, self._period_s = plan.order, plan.period
        self.record_batch(now + len(plan.order) * plan.period)

    def record_batch(self, now: float) -> None:
        """A stage has completed a batch."""
        self._last_batch_at, self._inquiry_began_at = now, math.inf
        self._answers = {}
        self._computing = {}

    # --- inquiry ---------------------------------------------------------------------------------------------------

    @property
    def next_check_at(self) -> float:
        """When to check for progress again."""
        if math.isinf(self._inquiry_began_at):
            return self._last_batch_at + _INQUIRY_FACTOR * self.usual_batch_s
        have_answered = set(self._order) <= self._answers.keys()
        wait_s = _LINK_FACTOR * self._patient_batch_s if have_answered else _SILENCE_FACTOR * self.usual_batch_s
        return min(self._inquiry_began_at + wait_s, self._stall_deadline)

    @property
    def _stall_deadline(self) -> float:
        return self._last_batch_at + _STALL_FACTOR * self._patient_batch_s

    def has_stalled(self, now: float) -> bool:
        """Whether neither inquiries nor repeated messages have helped."""
        return now >= self._stall_deadline

    def record_copies(self, now: float) -> None:
        """Count it as progress if a stage has sent more of its copies since the previous inquiry."""
        if any(
            answer.copied > before.copied
            for device, answer in self._answers.items()
            if (before := self._previous_answers.get(device)) is not None
        ):
            self._last_batch_at = max(self._last_batch_at, now)

    def begin_inquiry(self, now: float) -> None:
        """Begin to ask all stages."""
        self._inquiry_began_at = now
        self._contacted, self._previous_answers, self._answers = set(), self._answers, {}

    @property
    def is_inquiring(self) -> bool:
        return not math.isinf(self._inquiry_began_at)

    def record_contact(self, device: str) -> None:
        """A device has sent a message of any kind."""
        self._contacted.add(device)

    def record_answer(self, device: str, doing: Doing, now: float) -> None:
        """A stage has answered the inquiry."""
        self._answers[device] = doing
        known = self._computing.get(device)
        if doing.computes is None:
            self._computing.pop(device, None)
        elif known is None or known[0] != (doing.term, doing.computes):
            self._computing[device] = (doing.term, doing.computes), now

    def find_hung_stage(self, now: float) -> str | None:
        """A stage that has been computing the same pass for too long, though it answers."""
        for device in self._order:
            if device in self._computing and now - self._computing[device][1] >= _HANG_FACTOR * self._patient_batch_s:
                return device
        return None

    def unanswered_stages(self, connected: Collection[str]) -> list[str]:
        return [device for device in self._order if device in connected and device not in self._answers]

    def silent_stages(self, connected: Collection[str]) -> list[str]:
        """Stages silent since the inquiry; none if all are, since then the coordinator's own link is at fault."""
        asked = [device for device in self._order if device in connected]
        silent = [device for device in asked if device not in self._contacted]
        return silent if len(silent) < len(asked) else []

    def find_broken_link(self) -> tuple[str, str] | None:
        """Two devices, of which one keeps waiting for what the other has sent or for its answer to a complete copy.

        The first is the one to leave out: the later stage, or the one that holds the copy.
        """
        for receiver in self._order:
            for sender, name, micro_batch in self._lasting_waits(receiver):
                if name == "Kept":
                    return sender, receiver
                if all(
                    (name, micro_batch) in _sent_messages(answers, sender)
                    for answers in (self._previous_answers, self._answers)
                ):
                    earlier, later = sorted((sender, receiver), key=self._order.index)
                    return later, earlier
        return None

    def _lasting_waits(self, device: str) -> list[tuple[str, str, int]]:
        """What a stage has been waiting for since the previous inquiry."""
        before, now = self._previous_answers.get(device), self._answers.get(device)
        return [] if before is None or now is None else [each for each in now.awaits if each in before.awaits]


def _sent_messages(answers: dict[str, Doing], device: str) -> Collection[tuple[str, int]]:
    return answers[device].sent if device in answers else ()
