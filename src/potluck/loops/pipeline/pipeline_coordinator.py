"""The coordinator's side of the pipeline loop.

    until the run ends:
        wait       until a device that holds the data is connected
        begin      a term: choose a version and a layout, hand out the layers         (term_leader.py)
        run        ranges of batches, until a device is lost or another layout pays   (batch_flow.py)
                   between two ranges nothing is in flight: evaluate, save, stop
        finish     after a death: apply what had already passed the dead device       (term_leader.py)

The coordinator computes nothing and holds no data.
"""

from __future__ import annotations

import math

from potluck.loops.frozen_exchange import FrozenSender
from potluck.loops.leader import Leader
from potluck.loops.message_limits import is_usable_loss
from potluck.loops.messages import FrozenPull, Joined, Lost, Message
from potluck.loops.node import Envelope, Node
from potluck.loops.pipeline.batch_flow import BatchFlow
from potluck.loops.pipeline.batch_timer import BatchTimer
from potluck.loops.pipeline.messages import (
    Closed,
    Doing,
    Examine,
    Fetch,
    Inventory,
    Kept,
    Measured,
    Missing,
    Piece,
    Ready,
    Refused,
    Replica,
    Report,
    Scored,
    Stuck,
)
from potluck.loops.pipeline.pipeline_context import PipelineContext
from potluck.loops.pipeline.pipeline_members import PipelineMembers
from potluck.loops.pipeline.term_leader import TermLeader
from potluck.loops.pipeline.term_state import TermProgress, TermState
from potluck.loops.run_progress import RunOutcome

__all__ = ["PipelineCoordinator"]

_EVALUATION_RETRIES = 20  # times `retry` (or the time of the batches) until held-out batches are sent again
_MAX_NAMES = 5  # of devices in a failure's reason
_MESSAGES_PER_BATCH = 16  # whose bytes a stage may report for a batch, copies and repetitions included


class PipelineCoordinator:
    """Leads the pipeline of one run."""

    def __init__(self, node: Node, context: PipelineContext) -> None:
        self._node = node
        self._context = context
        self._settings = context.settings
        self._policy = context.policy
        self._archive = context.archive
        self.progress = context.progress
        retry_s = float(context.settings.retry)
        schedules = {"lr_schedule": context.settings.lr_schedule}
        self._leader = Leader(node, self, context.policy, context.progress, context.settings.patience, schedules)
        self._journal = self._leader.journal
        self._batch_timer = BatchTimer(retry_s)
        replication = context.settings.replication
        self._term = TermState(
            context.progress.turn, context.settings.recovery, self._batch_timer, replication.max_lag > 0
        )
        self._members = PipelineMembers(self._leader, context, self._term)
        self._term_leader = TermLeader(self._leader, context, self._term, self._members)
        self._archive_sync = self._term_leader.archive_sync
        self._flow = BatchFlow(self._leader, self._members, self._term, self._batch_timer, retry_s)
        self._frozen_sender = None if context.frozen is None else FrozenSender(node, context.frozen, context.progress)
        self._pending_outcome: RunOutcome | None = None  # ends the run once nothing is in flight
        self._evaluation_attempt = 0

    async def main(self) -> RunOutcome:
        """Lead terms until a stop condition, the user or a stall ends the run."""
        outcome = await self._leader.start()
        if self.progress.round == 0 and outcome is None:
            await self._evaluate_archive()
            self._policy.save_model(self._archive.weights, self.progress, self._node.now())
        while outcome is None:
            outcome = (
                await self._wait_for_devices()
                or await self._term_leader.begin_term()
                or await self._run_batches()
                or await self._term_leader.finish_in_flight()
            )
        self._leader.stop_devices()
        return outcome

    async def _wait_for_devices(self) -> RunOutcome | None:
        """Wait until a device that holds the data is connected; save what the others hold first."""
        if not self._members.candidates():
            await self._term_leader.rescue_model()
        while not self._members.candidates():
            outcome = self._members.refused_outcome() or await self._handle_next()
            if outcome is not None:
                return outcome
        return None

    # --- run -------------------------------------------------------------------------------------------------------

    async def _run_batches(self) -> RunOutcome | None:
        """Run ranges of batches until the run ends or another term is needed."""
        while not self._term.is_broken and not self._term.replan_wanted:
            outcome = self._pending_outcome or self._leader.stop_outcome()
            if outcome is None:
                outcome = await self._run_range()
                if outcome is not None or self._term.is_broken:
                    return outcome
            outcome = await self._evaluate_and_save()
            if outcome is not None:
                return outcome
        return None

    async def _run_range(self) -> RunOutcome | None:
        """Run batches until none is in flight; at this point only a failure ends the run."""
        start, flow = self.progress.round, self._flow
        flow.begin_range(start, max(self._policy.next_drain_batch(start), start + 1))
        while self.progress.round < self._term.range_end and not self._term.is_broken:
            outcome = await self._handle_next(flow.announce_again_at, flow.next_check_at)
            if outcome is not None and outcome.status == "failed":
                return outcome
            flow.check_batch_timer()
            self._pending_outcome = self._pending_outcome or outcome
            if self._pending_outcome is not None or self._term.replan_wanted:
                flow.close_range()
        return None

    async def _handle_next(self, announce_at: float = math.inf, check_at: float = math.inf) -> RunOutcome | None:
        """Handle the next message and what is due; the outcome if the run stalls or is interrupted."""
        term, quarantine = self._term, self._members.quarantine
        envelope = await self._leader.receive(
            min(announce_at, check_at, quarantine.next_retry_at, term.loss_noticed_at)
        )
        now = self._node.now()
        self._members.recall_devices()
        if envelope is not None:
            self.handle_message(envelope)
        elif (outcome := self._leader.stall_outcome()) is not None:
            return outcome
        elif now >= announce_at and term.progress is not None:
            self._flow.announce_range()
        if now >= term.loss_noticed_at:
            term.is_broken = True
        return self._policy.interrupt_outcome()

    # --- evaluate --------------------------------------------------------------------------------------------------

    async def _evaluate_and_save(self) -> RunOutcome | None:
        """Evaluate and save what is due while nothing is in flight."""
        term_progress = self._term.progress
        assert term_progress is not None
        outcome = self._pending_outcome or self._leader.stop_outcome()
        evaluates = self._policy.evaluation_due(self.progress.round)
        if not (evaluates or self._policy.checkpoint_due(self.progress.round) or outcome):
            return None
        in_stages = evaluates and self._settings.evaluation == "pipeline" and self._archive.evaluation_batches > 0
        if in_stages:
            await self._evaluate_in_stages(term_progress)
        if not self._term.is_broken:
            await self._archive_sync.archive_stages(term_progress)
        if self._term.is_broken:
            return self._leader.stall_outcome()
        if evaluates and not in_stages:
            await self._evaluate_archive()
        self._policy.save_model(self._archive.weights, self.progress, self._node.now())
        return self._pending_outcome or self._leader.stop_outcome()

    async def _evaluate_archive(self) -> None:
        weights = self._archive.weights
        await self._leader.evaluate(lambda: self._policy.evaluate_model(weights))

    async def _evaluate_in_stages(self, term_progress: TermProgress) -> None:
        """Send held-out batches through the stages; if one is lost on the way, start another attempt."""
        plan, batches = term_progress.plan, self._archive.evaluation_batches
        last = plan.order[-1]
        max_s = _EVALUATION_RETRIES * max(float(self._settings.retry), batches * plan.period)
        while not self._term.is_broken:
            self._evaluation_attempt += 1
            request = Examine(self._term.number, self._evaluation_attempt, batches)
            for device in plan.order:
                self._node.send(device, request)
            scored = (await self._term_leader.requests.request_answers({last: request}, max_s)).get(last)
            if isinstance(scored, Scored):
                accuracy = {"accuracy": scored.right / max(1, scored.positions)} if scored.right >= 0 else {}
                loss = scored.loss / scored.count
                score = {"loss": loss if is_usable_loss(loss) else math.nan, **accuracy, **scored.metrics}
                self._leader.record_score(score)
                return
            self._flow.inquire_stages()

    def _record_score(self, sender: str, scored: Scored) -> None:
        if scored.attempt != self._evaluation_attempt:
            return
        samples, reason = self._archive.evaluation_samples, self._archive.metrics_refusal(scored.metrics)
        if scored.count != samples:
            reason = f"it measured {scored.right} right of {scored.count}, not of {samples}"
        elif scored.right > scored.positions:
            reason = f"it measured {scored.right} right of {scored.positions}"
        if reason is not None:
            self._members.refuse_device(sender, reason)
            return
        self._term.pending.record_answer(sender, scored)

    # --- messages --------------------------------------------------------------------------------------------------

    def handle_message(self, envelope: Envelope) -> None:
        """Handle one message; one of another term or of an earlier incarnation of its sender is dropped."""
        message, sender = envelope.message, envelope.sender
        if isinstance(message, Joined):
            if self._members.add_device(message) and self._leader.has_started:
                self._consider_joined()
        elif isinstance(message, Lost):
            self._members.remove_device(message)
        elif self._leader.roster.incarnation_of(sender) != envelope.incarnation:
            return
        elif isinstance(message, FrozenPull):
            self._members.record_contact(sender)
            if self._frozen_sender is not None and self._frozen_sender.is_valid_request(message):
                self._leader.stall_timeout.extend_once(f"{sender}/{message.first}", self._node.now())
                self._frozen_sender.answer_request(sender, message)
        elif getattr(message, "term", None) == self._term.number:
            self._members.record_contact(sender)
            self._batch_timer.record_contact(sender)
            self._handle_term_message(sender, message)

    def _handle_term_message(self, sender: str, message: Message) -> None:
        match message:
            case Refused():
                self._members.resolve_refusal(sender, message)
            case Inventory():
                self._term_leader.record_inventory(sender, message)
                self._end_quarantine(sender)
            case Measured():
                self._term_leader.record_measured(sender, message)
            case Ready():
                self._term.pending.record_answer(sender, message)
                self._end_quarantine(sender)
            case Doing():
                self._batch_timer.record_answer(sender, message, self._node.now())
            case Missing():
                self._term.is_broken = True
            case Stuck():
                if self._term.progress is not None:
                    self._term.progress.mark_stuck(sender)
            case Piece():
                self._archive_sync.receive_layers(sender, message)
            case Fetch():
                self._archive_sync.send_layers(sender, message)
            case Replica():
                self._archive_sync.receive_copy(sender, message)
            case Report():
                self._record_report(sender, message)
            case Kept():
                self._archive_sync.record_copy(sender, message)
            case Scored():
                self._record_score(sender, message)
            case Closed(end=end):
                self._flow.record_closed(sender, end)

    def _end_quarantine(self, device: str) -> None:
        if self._members.end_quarantine(device):
            self._consider_joined()

    def _consider_joined(self) -> None:
        """A device may take part from now on."""
        if self._settings.adaptation.join:
            self._term_leader.consider_replan()

    def _record_report(self, sender: str, report: Report) -> None:
        term_progress, now = self._term.progress, self._node.now()
        if term_progress is None or sender not in term_progress.applied_versions:
            return
        newest, batches = self._archive_sync.newest_possible_version, report.applied - self.progress.round
        most_bytes = _MESSAGES_PER_BATCH * max(1, batches) * self._context.max_message_bytes
        received_s = (seconds for _, _, seconds in report.received)
        sane = all(0 <= seconds < math.inf for seconds in (report.seconds, *report.layers, *received_s))
        sane = sane and 0 <= report.sent <= most_bytes
        if not (sane and term_progress.start_version <= report.applied <= newest):
            self._members.refuse_device(
                sender, f"it reports batch {report.applied} after {report.seconds} s and {report.sent} bytes"
            )
            return
        self._flow.heard_at = now
        self.progress.bytes_received += report.sent
        if term_progress.record_report(sender, report):
            self._batch_timer.record_batch(now)
            self._leader.stall_timeout.record_batch(report.applied, now)
            has_changed = self._context.planner.observe_batch(
                term_progress.plan, sender, min(report.seconds, now), report.layers
            )
            has_changed |= self._context.planner.observe_transfers(sender, report.received)
            if has_changed and self._settings.adaptation.on_change:
                self._term_leader.consider_changed_speed()
        while self.progress.round < term_progress.committed_version:
            self._commit_batch(term_progress)

    def _commit_batch(self, term_progress: TermProgress) -> None:
        """Every stage has applied the next batch."""
        self._policy.check_may_commit()
        now, batch = self._node.now(), self.progress.round
        self._batch_timer.observe_interval(now - self._term.committed_at)
        self._term_leader.record_commit(batch)
        self.progress.updates += 1
        self._journal.record_event(self._node.name, "committed", batch=batch, term=self._term.number)
        loss = term_progress.pop_loss(batch)
        if loss is not None:
            self._journal.record_scalar("loss", loss)
        self._policy.report_progress(self.progress, now)
        adaptation = self._settings.adaptation
        is_periodic = adaptation.every and (batch + 1 == adaptation.first or (batch + 1) % adaptation.every == 0)
        if is_periodic or self._term_leader.relayout.is_due(batch):
            self._term_leader.consider_replan()
        if batch + 1 < self._term.range_end:
            self._pending_outcome = self._pending_outcome or self._policy.stop_outcome(self.progress, now)

    # --- failure ---------------------------------------------------------------------------------------------------

    def stall_reason(self) -> str:
        """What the run is waiting for, with the names of the devices."""
        if not self._members.candidates():
            holders = " or ".join(dict.fromkeys(self._context.data_holders))
            return f"{holders} holds the data and is gone; the run can be resumed from batch {self.progress.round}"
        progress, pending = self._term.progress, self._term.pending
        waiting = pending.unanswered() if pending.is_open or progress is None else progress.slowest_stages
        where = f" at batch {self.progress.round}" if progress is not None else ""
        return (
            f"still waiting for {', '.join(waiting[:_MAX_NAMES])}{where}"
            if waiting
            else f"at batch {self.progress.round}"
        )
