"""Lets ranges of batches flow through the stages, and finds the stage or link at fault when they stop.

A range is a run of batches after which nothing is in flight. Its messages are repeated while nothing is heard.
"""

from __future__ import annotations

from potluck.loops.leader import Leader
from potluck.loops.pipeline.batch_timer import BatchTimer
from potluck.loops.pipeline.messages import Begin, Close, Inquire
from potluck.loops.pipeline.pipeline_members import PipelineMembers
from potluck.loops.pipeline.term_state import TermState

__all__ = ["BatchFlow"]

_CUT_OFF_RETRIES = 20  # times `retry` until a device that was cut off from a neighbour is contacted again


class BatchFlow:
    """The current range of batches: where it begins and ends, and whether it is being closed early."""

    def __init__(
        self, leader: Leader, members: PipelineMembers, term: TermState, batch_timer: BatchTimer, retry_s: float
    ) -> None:
        self._node = leader.node
        self._journal = leader.journal
        self._roster = leader.roster
        self._progress = leader.progress
        self._members = members
        self._term = term
        self._batch_timer = batch_timer
        self._retry_s = retry_s
        self._start = 0
        self.is_closing = self._is_closed = False
        self.heard_at = 0.0  # when a stage last reported, or the range was last announced

    def begin_range(self, start: int, end: int) -> None:
        """Let the batches from `start` to just before `end` flow."""
        assert self._term.progress is not None
        self._start, self._term.range_end = start, end
        self.is_closing = self._is_closed = False
        self._batch_timer.begin_range(self._term.progress.plan, self._node.now())
        self.announce_range()

    def close_range(self) -> None:
        """End the range as soon as the first stage can; it answers with the batch before which it ends."""
        if not self.is_closing:
            self.is_closing = True
            self.announce_range()

    def record_closed(self, sender: str, end: int) -> None:
        """The first stage says before which batch the range ends."""
        progress, range_end = self._term.progress, self._term.range_end
        if progress is None or sender != progress.plan.order[0] or not self.is_closing or self._is_closed:
            return
        if not self._start <= end <= range_end:
            self._members.refuse_device(sender, f"it ends batches {self._start} to {range_end} before {end}")
            return
        self._is_closed, self._term.range_end = True, end
        self.announce_range()

    def announce_range(self) -> None:
        """Send the stages what they must know of the range; receiving it twice changes nothing."""
        assert self._term.progress is not None
        self.heard_at = self._node.now()
        number, order = self._term.number, self._term.progress.plan.order
        begin = Begin(number, self._start, self._term.range_end, self._progress.lr_drops("lr_schedule"))
        for device in order:
            self._node.send(device, begin)
            if self._is_closed:
                self._node.send(device, Close(number, self._term.range_end))
        if self.is_closing and not self._is_closed:
            self._node.send(order[0], Close(number))
        for device in self._batch_timer.unanswered_stages(self._roster) if self._batch_timer.is_inquiring else ():
            self._node.send(device, Inquire(number))

    @property
    def announce_again_at(self) -> float:
        """When to repeat the announcement, unless a stage reports first."""
        timer = self._batch_timer
        return self.heard_at + (self._retry_s / 2 if timer.is_inquiring else max(self._retry_s, 3 * timer.mean_s))

    @property
    def next_check_at(self) -> float:
        return self._batch_timer.next_check_at

    def inquire_stages(self) -> None:
        """Ask the stages what they do, outside of a range of batches; quarantine one that has hung since long."""
        hung = self._batch_timer.find_hung_stage(self._node.now())
        if hung is not None:
            self._members.quarantine_device(hung, "hangs in a computation")
            return
        assert self._term.progress is not None
        for device in self._term.progress.plan.order:
            self._node.send(device, Inquire(self._term.number))

    def check_batch_timer(self) -> None:
        """If a batch is overdue, ask the stages; quarantine one that does not answer, hangs or is cut off."""
        now, timer, term = self._node.now(), self._batch_timer, self._term
        if term.is_broken or now < timer.next_check_at:
            return
        silent, broken_link = (
            (timer.silent_stages(self._roster), timer.find_broken_link()) if timer.is_inquiring else ([], None)
        )
        for device in silent:
            self._members.quarantine_device(device, "does not answer")
        if not silent and broken_link is not None:
            device, neighbour = broken_link
            self._members.quarantine_device(device, f"is cut off from {neighbour}", _CUT_OFF_RETRIES)
        hung = timer.find_hung_stage(now) if not term.is_broken else None
        if hung is not None:
            self._members.quarantine_device(hung, "hangs in a computation")
        timer.record_copies(now)
        if not term.is_broken and timer.has_stalled(now):
            term.is_broken = True
            self._journal.record_event(self._node.name, "stalled", term=term.number)
        if not term.is_broken:
            timer.begin_inquiry(now)
            self._journal.record_event(self._node.name, "overdue", term=term.number, usual=timer.usual_batch_s)
            self.announce_range()
