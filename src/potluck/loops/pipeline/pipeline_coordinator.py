"""The coordinator's side of the pipeline loop.

    while nothing says stop:
        muster     wait until a device that holds the data is here
        settle     a new term: halt, take stock, choose a version and a layout, hand out the layers (terms.py)
        flow       batches flow until the stretch ends, someone is lost, or another layout pays
        rest       nothing is in flight: measure, save, look whether the run is over
        finish     after a death: what had passed the dead device is applied by those before it (terms.py)

The coordinator computes nothing and holds no data.
"""

from __future__ import annotations

import math

from potluck.errors import UserError
from potluck.loops.messages import Message, Stop
from potluck.loops.node import Node, Step, Work
from potluck.loops.pipeline.batch_timer import BatchTimer
from potluck.loops.pipeline.device_speeds import DeviceSpeeds
from potluck.loops.pipeline.messages import (
    Begin,
    Close,
    Closed,
    Doing,
    Examine,
    Fetch,
    Halt,
    Inquire,
    Inventory,
    Kept,
    Missing,
    Piece,
    Ready,
    Refused,
    Replica,
    Report,
    Scored,
    Stuck,
)
from potluck.loops.pipeline.pipeline_leader import PipelineContext
from potluck.loops.pipeline.pipeline_planner import PipelinePlan
from potluck.loops.pipeline.term_leader import TermLeader
from potluck.loops.pipeline.term_progress import TermProgress
from potluck.loops.run_progress import RunOutcome

__all__ = ["PipelineCoordinator"]

_STALL = 20  # times `retry` (or a batch's time) until held-out batches are sent anew
_APART = 20  # times `retry`, after which one who was cut off from a neighbour is asked back


class PipelineCoordinator(TermLeader):
    """Leads the pipeline of one run."""

    def __init__(self, node: Node, orders: PipelineContext) -> None:
        super().__init__(node, orders)
        self._speeds = DeviceSpeeds(self._planner.slowness)
        self._range_start = 0  # of the stretch
        self._closing = self._closed = False
        self._pending_outcome: RunOutcome | None = None  # what ends the run once nothing is in flight
        self._batch_timer = BatchTimer(float(orders.settings.retry))
        self._heard_at = 0.0
        self._evaluation_batches, self._evaluation_samples = (
            orders.archive.evaluation_batches,
            orders.archive.evaluation_samples,
        )
        self._evaluation_attempt = 0  # at measuring

    async def main(self) -> RunOutcome:
        """Lead until a rule of the job, the user or a shortfall ends the run."""
        self._stall_timeout.restart_timer(self._node.now())
        await self._drain_mailbox()
        self._started = True
        ending = self._policy.stop_outcome(self.progress, self._node.now())
        if self.progress.round == 0 and ending is None:
            await self._evaluate_model()
            self._policy.save_model(self._archive.weights, self.progress, self._node.now())
        while ending is None:
            ending = (
                await self._wait_for_devices()
                or await self._begin_term()
                or await self._run_batches()
                or await self._finish_in_flight()
            )
        for device in self._roster:
            self._node.send(device, Stop())
        return ending

    async def _wait_for_devices(self) -> RunOutcome | None:
        """Wait until someone who holds the data is here; what the others have is brought to safety first."""
        if not self._candidate_devices() and self._last_plan is not None and self._roster:
            await self._rescue_model()
        while not self._candidate_devices():
            ending = self._refused_outcome() or await self._handle_next(math.inf)
            if ending is not None:
                return ending
        return None

    # --- flow ------------------------------------------------------------------------------------------------------

    async def _run_batches(self) -> RunOutcome | None:
        """Let stretches flow, resting between them, until the run ends or another term is needed."""
        while not self._needs_new_term and not self._replan_wanted:
            ending = self._pending_outcome or self._policy.stop_outcome(self.progress, self._node.now())
            if ending is None:
                ending = await self._run_batch_range()
                if ending is not None or self._needs_new_term:
                    return ending
            ending = await self._evaluate_and_save()
            if ending is not None:
                return ending
        return None

    async def _run_batch_range(self) -> RunOutcome | None:
        """Let batches flow until none is in flight; only a failure ends the run here."""
        self._range_start, self._range_end = (
            self.progress.round,
            max(self._policy.next_drain_batch(self.progress.round), self.progress.round + 1),
        )
        self._closing = self._closed = False
        assert self._term_progress is not None
        self._batch_timer.begin_range(self._term_progress.plan, self._node.now())
        self._send_range()
        while self.progress.round < self._range_end and not self._needs_new_term:
            ending = await self._handle_next(
                self._heard_at + self._resend_interval_s(), self._batch_timer.next_check_at
            )
            if ending is not None and ending.status == "failed":
                return ending
            self._check_batch_timer()
            self._pending_outcome = self._pending_outcome or ending
            if (self._pending_outcome is not None or self._replan_wanted) and not self._closing:
                self._closing = True
                self._send_range()
        return None

    def _resend_interval_s(self) -> float:
        """How long nothing is heard before what the stages must know is said again."""
        retry = float(self._settings.retry)
        return retry if self._batch_timer.is_inquiring else max(retry, 3 * self._batch_timer.mean_s)

    def _check_batch_timer(self) -> None:
        """Where no batch comes, ask the stages; who does not answer, or cannot reach a neighbour, is left out."""
        now, watch = self._node.now(), self._batch_timer
        if self._needs_new_term or now < watch.next_check_at:
            return
        silent, apart = (
            (watch.silent_stages(self._roster), watch.find_broken_link()) if watch.is_inquiring else ([], None)
        )
        for device in silent:
            self._quarantine_device(device, "does not answer")
        if not silent and apart is not None:
            self._quarantine_device(apart[0], f"is cut off from {apart[1]}", _APART)
        if not self._needs_new_term and watch.has_stalled(now):
            self._needs_new_term = True
            self._journal.record_event(self._node.name, "stalled", term=self._term)
        if not self._needs_new_term:
            watch.begin_inquiry(now)
            self._journal.record_event(self._node.name, "overdue", term=self._term, usual=watch.usual_batch_s)
            self._send_range()

    def _end_quarantine(self, device: str) -> None:
        if self._quarantine.release_device(device):
            self._journal.record_event(device, "answers again", term=self._term)
            self._on_device_joined(device)

    def _send_range(self) -> None:
        """Say what the stages must know of the stretch, for the first time or because nothing was heard for a while."""
        assert self._term_progress is not None
        self._heard_at = self._node.now()
        order = self._term_progress.plan.order
        for device in order:
            self._node.send(device, Begin(self._term, self._range_start, self._range_end))
            if self._closed:
                self._node.send(device, Close(self._term, self._range_end))
        if self._closing and not self._closed:
            self._node.send(order[0], Close(self._term))
        for device in self._batch_timer.unanswered_stages(self._roster) if self._batch_timer.is_inquiring else ():
            self._node.send(device, Inquire(self._term))

    async def _handle_next(self, until: float, look_at: float = math.inf) -> RunOutcome | None:
        """Handle the next thing that happens, and give up when nothing moves for too long."""
        wakes_at = min(look_at, self._quarantine.next_retry_at, self._loss_noticed_at)
        envelope = await self._node.receive(min(until, wakes_at, self._stall_timeout.expires_at))
        now = self._node.now()
        for device in self._quarantine.due_devices(now):
            self._node.send(device, Halt(self._term, self._history.terms))
        if envelope is not None:
            self._handle_message(envelope)
        elif now >= self._stall_timeout.expires_at:
            return RunOutcome("failed", self._stall_reason())
        elif now >= until and self._term_progress is not None:
            self._send_range()
        if now >= self._loss_noticed_at:
            self._needs_new_term = True
        return self._policy.interrupt_outcome()

    # --- rest ------------------------------------------------------------------------------------------------------

    async def _evaluate_and_save(self) -> RunOutcome | None:
        """Nothing is in flight: measure and save what is due."""
        books, ledger = self.progress, self._term_progress
        assert ledger is not None
        ending = self._pending_outcome or self._policy.stop_outcome(books, self._node.now())
        scored = self._policy.evaluation_due(books.round)
        if not (scored or self._policy.checkpoint_due(books.round) or ending):
            return None
        in_place = scored and self._settings.evaluation == "pipeline" and self._evaluation_batches > 0
        if in_place:
            await self._evaluate_in_stages(ledger)
        if not self._needs_new_term:
            await self._archive_stages(ledger)
        if self._needs_new_term:
            return self._stall_outcome()
        if scored and not in_place:
            await self._evaluate_model()
        self._policy.save_model(self._archive.weights, books, self._node.now())
        return self._pending_outcome or self._policy.stop_outcome(books, self._node.now())

    async def _evaluate_model(self) -> None:
        """Score the archive's version on held-out data; the coordinator's own time is not modelled."""
        numbers = self._archive.weights
        score = await self._node.compute(Work([Step(0.0)], lambda pace: self._policy.evaluate_model(numbers)))
        self._journal.record_evaluation(score)

    async def _evaluate_in_stages(self, ledger: TermProgress) -> None:
        """Let held-out batches flow through the stages; what gets lost on the way makes a new attempt."""
        order, last = ledger.plan.order, ledger.plan.order[-1]
        most_s = _STALL * max(float(self._settings.retry), self._evaluation_batches * ledger.plan.period)
        while not self._needs_new_term:
            self._evaluation_attempt += 1
            for device in order:
                self._node.send(device, Examine(self._term, self._evaluation_attempt, self._evaluation_batches))
            request = Examine(self._term, self._evaluation_attempt, self._evaluation_batches)
            answers = await self._request_answers({last: request}, most_s)
            found = answers.get(last)
            if isinstance(found, Scored):
                score = {"loss": found.loss / found.count}
                accuracy = {"accuracy": found.right / found.count} if found.right >= 0 else {}
                self._journal.record_evaluation(score | accuracy)
                return

    # --- what comes in ---------------------------------------------------------------------------------------------

    def _handle_term_message(self, sender: str, message: Message) -> None:
        self._batch_timer.record_contact(sender)
        match message:
            case Refused() as refused:
                self._handle_refusal(sender, refused)
            case Inventory() as inventory:
                self._record_inventory(sender, inventory)
                self._end_quarantine(sender)
            case Ready():
                self._record_answer(sender, message)
                self._end_quarantine(sender)
            case Doing() as doing:
                self._batch_timer.record_answer(sender, doing)
            case Missing():
                self._needs_new_term = True
            case Stuck():
                if self._term_progress is not None:
                    self._term_progress.mark_stuck(sender)
            case Piece() as piece:
                self._receive_layers(sender, piece)
            case Fetch() as fetch:
                self._send_layers(sender, fetch)
            case Replica() as replica:
                self._receive_copy(sender, replica)
            case Report() as report:
                self._record_report(sender, report)
            case Kept() as kept:
                self._record_copy(sender, kept)
            case Scored(attempt=attempt) as scored:
                if attempt == self._evaluation_attempt:
                    self._record_score(sender, scored)
            case Closed(end=end):
                self._close_range(sender, end)

    def _record_copy(self, sender: str, kept: Kept) -> None:
        """Someone has a copy; only the word of the stage's keeper counts."""
        ledger = self._term_progress
        if ledger is None or not ledger.start_version <= kept.version <= self._newest_possible_version:
            return
        keepers = zip(ledger.plan.stage_layers, ledger.plan.keepers, strict=False)
        if (range(kept.first, kept.last + 1), sender) in keepers and ledger.record_copy(kept):
            self._announce_secure_version(ledger.secure_version)

    def _record_score(self, sender: str, scored: Scored) -> None:
        if scored.count != self._evaluation_samples or scored.right > scored.count:
            self._refuse_device(
                sender, f"it measured {scored.right} right of {scored.count}, not of {self._evaluation_samples}"
            )
            return
        self._record_answer(sender, scored)

    def _close_range(self, sender: str, end: int) -> None:
        """The first stage says where the stretch ends."""
        if (
            self._term_progress is None
            or sender != self._term_progress.plan.order[0]
            or not self._closing
            or self._closed
        ):
            return
        if not self._range_start <= end <= self._range_end:
            self._refuse_device(sender, f"it ends batches {self._range_start} to {self._range_end} before {end}")
            return
        self._closed, self._range_end = True, end
        self._send_range()

    def _record_report(self, sender: str, report: Report) -> None:
        ledger = self._term_progress
        if ledger is None or sender not in ledger.applied_versions:
            return
        sane = math.isfinite(report.seconds) and report.seconds >= 0 and report.sent >= 0
        if not (sane and ledger.start_version <= report.applied <= self._newest_possible_version):
            self._refuse_device(
                sender, f"it reports batch {report.applied} after {report.seconds} s and {report.sent} bytes"
            )
            return
        self._heard_at = self._node.now()
        self.progress.bytes_received += report.sent
        if ledger.record_report(sender, report):
            now = self._node.now()
            self._batch_timer.record_batch(now)
            self._stall_timeout.record_batch(report.applied, now)
            self._observe_speed(ledger.plan, sender, min(report.seconds, now))
        while self.progress.round < ledger.committed_version:
            self._commit_batch(ledger)

    def _observe_speed(self, plan: PipelinePlan, sender: str, seconds: float) -> None:
        layers = plan.stage_layers[plan.order.index(sender)]
        nominal = self._planner.nominal_batch_s(sender, layers[0], layers[-1])
        if self._speeds.observe_batch(sender, nominal, seconds) and self._settings.adaptation.on_change:
            self._consider_replan()

    def _commit_batch(self, ledger: TermProgress) -> None:
        """Every stage has applied the next batch."""
        now, batch = self._node.now(), self.progress.round
        self._batch_timer.observe_interval(now - self._committed_at)
        self._set_version(batch + 1)
        self.progress.updates += 1
        self._journal.record_event(self._node.name, "committed", batch=batch, term=self._term)
        loss = ledger.pop_loss(batch)
        if loss is not None:
            self._journal.record_scalar("loss", loss)
        self._policy.report_progress(self.progress, now)
        adaptation = self._settings.adaptation
        if adaptation.every and (batch + 1 == adaptation.first or (batch + 1) % adaptation.every == 0):
            self._consider_replan()
        if batch + 1 < self._range_end:
            self._pending_outcome = self._pending_outcome or self._policy.stop_outcome(self.progress, now)

    # --- adaptation and membership ---------------------------------------------------------------------------------

    def _consider_replan(self) -> None:
        """Would another layout pay?"""
        if self._term_progress is None or self._replan_wanted or not self._candidate_devices():
            return
        old, horizon = self._term_progress.plan, self._settings.adaptation.horizon
        self._planner.clear_loss_plans()
        try:
            new = self._planner.plan_layout(self._candidate_devices())
        except UserError:
            return
        gain = self._planner.current_period_s(old) - new.period
        cost = self._planner.migration_s(old, new) if horizon and not new.has_same_layout(old) else 0.0
        self._replan_wanted = not new.has_same_layout(old) and gain * (horizon or 1) > cost
        self._plan_for_losses(self._candidate_devices())

    def _on_device_joined(self, device: str) -> None:
        if self._settings.adaptation.join:
            self._consider_replan()

    def _on_device_left(self, device: str) -> None:
        self._speeds.forget_device(device)
        if self._term_progress is None:
            return
        plan = self._term_progress.plan
        self._term_progress.mark_lost(device)
        if device not in plan.order:
            self._replan_wanted = self._replan_wanted or device in plan.keepers  # whose copies need another place
        elif self._settings.recovery.notice == "connection":
            self._needs_new_term = True
        else:
            self._loss_noticed_at = min(self._loss_noticed_at, max(self._loss_deadline(plan), self._node.now()))

    def _loss_deadline(self, plan: PipelinePlan) -> float:
        """When the oldest batch in flight has taken several times the mean, from the moment it was let in.

        A batch takes as many periods as there are batches in flight, and all but one of them are over.
        """
        in_flight = plan.windows[0]
        return (
            self._committed_at
            + (self._settings.recovery.factor * in_flight - (in_flight - 1)) * self._batch_timer.mean_s
        )
