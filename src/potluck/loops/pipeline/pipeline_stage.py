"""A stage at work: it runs the task its schedule says is next, as soon as the inputs of that task have arrived.

    previous ──Activation──▶ forward ──Activation──▶ next
             ◀──Gradient─── backward ◀──Gradient───        then the step: version v becomes v + 1

The weights that a micro-batch used in its forward pass live on in its graph until its backward pass; its gradient is
applied to the newest version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from potluck.journal import Span
from potluck.loops.node import COORDINATOR, Node
from potluck.loops.pipeline.layer_measurement import is_timed_batch
from potluck.loops.pipeline.link_estimates import ReceptionLog
from potluck.loops.pipeline.messages import (
    Activation,
    Assign,
    Begin,
    Doing,
    Exam,
    Examine,
    ExamLabels,
    Gradient,
    Kept,
    Labels,
    Refused,
    Report,
    Stuck,
)
from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.loops.pipeline.settings import Pipeline
from potluck.loops.pipeline.stage_backend import MicroBatchSizes, StageBackend
from potluck.loops.pipeline.stage_evaluator import StageEvaluator
from potluck.loops.pipeline.stage_exchange import MessageKey, StageExchange
from potluck.loops.pipeline.stage_link import BackgroundTaskGroup, StageLink, WakeSignal
from potluck.loops.pipeline.stage_processor import LayerCallback, PassResult, PassTimes, StageProcessor
from potluck.loops.pipeline.stage_replicator import StageReplicator
from potluck.loops.pipeline.stage_schedules import StageSchedule
from potluck.loops.pipeline.version_store import StageVersions, VersionStore
from potluck.payload import Payload
from potluck.planning.schedule.stage_rules import Kind

__all__ = ["PipelineStage", "StageContext"]


class StageContext(NamedTuple):
    """What a stage works with."""

    node: Node
    settings: Pipeline
    backend: StageBackend
    costs: PipelineCosts
    flops: float
    sizes: MicroBatchSizes
    version_store: VersionStore
    receptions: ReceptionLog


class InFlightMicroBatch(NamedTuple):
    """A micro-batch between its forward and its backward pass."""

    forwarded: Any
    version: int
    times: PassTimes  # of its forward pass


class PipelineStage:
    """One device's layers in one term."""

    def __init__(
        self, context: StageContext, assign: Assign, weights: Any, on_error: Callable[[BaseException], None]
    ) -> None:
        self.node, self.settings, self.backend, self._costs, _, self._sizes, store, self._receptions = context
        self.term, self.index = assign.term, assign.order.index(context.node.name)
        self._window = assign.windows[self.index]
        ends = (0, *assign.cuts, self._costs.layer_count)
        self.first, self.last = ends[self.index], ends[self.index + 1] - 1
        self.processor = StageProcessor(self.node, self._costs, context.flops, range(self.first, self.last + 1))
        self.versions = StageVersions(store, self.settings, assign, self.index, range(self.first, self.last + 1))
        self._buffers = weights.buffers
        self._gradient_sum: Any = None
        self._loss_sum = 0.0  # of the batch whose micro-batches are on their way back
        self._times: PassTimes | None = None  # of the same batch
        self._schedule: StageSchedule | None = None
        self._range_start = -1
        self.lr_drops: tuple[int, ...] = ()  # of a learning rate that follows a metric
        self._finishing = False
        self._newest_batch = self._newest_micro_batch = -1  # whose forward pass has begun
        self._max_in_flight = max(1, *assign.windows) * self.settings.schedule.micro_batch_count  # micro-batches
        self._in_flight: dict[int, InFlightMicroBatch] = {}
        self._evaluator: StageEvaluator | None = None
        self._wake = WakeSignal()
        self._task_group = BackgroundTaskGroup(on_error)
        self.link = StageLink(self.node, self._task_group)
        log_length = 3 * max(1, self._window) * self.settings.schedule.micro_batch_count
        self.exchange = StageExchange(self.node, self.link, assign.term, assign.order, log_length)
        self.is_first, self.is_last = self.exchange.is_first, self.exchange.is_last
        self.versions.store_version(weights)
        self._replicators = self._start_replicators(assign)
        self._task_group.start_task(self._run_schedule())

    def _start_replicators(self, assign: Assign) -> list[StageReplicator]:
        """Start sending copies to the stage's replica holder, if it has one, and to the coordinator."""
        strides = {assign.keepers[self.index] if assign.keepers else COORDINATOR: assign.stride}
        strides[COORDINATOR] = self.settings.replication.central_stride() or strides.get(COORDINATOR, 0)
        replicators = [StageReplicator(self, holder, stride) for holder, stride in strides.items() if stride]
        for replicator in replicators:
            self._task_group.start_task(replicator.run())
        return replicators

    # --- orders ----------------------------------------------------------------------------------------------------

    def begin_range(self, begin: Begin) -> None:
        """Run a range of batches; receiving this twice changes nothing."""
        if begin.start > self._range_start:
            self._range_start, self.lr_drops = begin.start, begin.drops
            self._schedule = self.settings.schedule.stage_schedule(self._window, begin.start, begin.end)
            self._wake.notify()
        self.send_report()

    def close_range(self, end: int | None) -> int | None:
        """End the range before a batch, or as soon as possible; where it ends."""
        if self._schedule is None:
            return None
        if end is None:
            end = min(max(self._schedule.first_unstarted_batch(), self._newest_batch + 1), self._schedule.end_batch)
        if end < self._schedule.end_batch:
            self._schedule.end_before(end)
            self._wake.notify()
        return self._schedule.end_batch

    def finish_in_flight(self) -> None:
        """Let no more batches in, apply those that return, and report when no more can."""
        self._finishing = True
        self.close_range(None)
        self._wake.notify()

    def start_evaluation(self, examine: Examine) -> None:
        """Evaluate the model together with the other stages; receiving this twice changes nothing."""
        evaluator = self._evaluator_for(examine.attempt)
        if evaluator is not None and not evaluator.has_started:
            evaluator.has_started = True
            self._task_group.start_task(evaluator.run(examine))

    def cancel_tasks(self) -> None:
        self._task_group.cancel_all()

    # --- messages of other stages ----------------------------------------------------------------------------------

    def receive_micro_batch(self, sender: str, message: Activation | Labels | Gradient) -> None:
        """Accept a micro-batch from the neighbour that should send it; one that arrives twice is used once."""
        if sender != self.exchange.expected_sender(type(message).__name__) or not self._is_awaited(message):
            return
        reason = self._payload_refusal(message)
        if reason is not None:
            self.report_refusal(sender, reason)
            return
        self.exchange.store_message(message.part, message)
        self._wake.notify()

    def _is_awaited(self, message: Activation | Labels | Gradient) -> bool:
        if isinstance(message, Gradient):
            return message.part in self._in_flight
        first = self.versions.start * self.settings.schedule.micro_batch_count
        limit = max(self._newest_micro_batch + 1, first) + 2 * self._max_in_flight
        return self._newest_micro_batch < message.part < limit

    def _payload_refusal(self, message: Activation | Labels | Gradient) -> str | None:
        """Why a message cannot be computed with."""
        if isinstance(message, Gradient):
            return self.backend.gradient_refusal(self._in_flight[message.part].forwarded, message.payload)
        samples = self._sizes.count(message.part)
        if isinstance(message, Labels):
            return self.backend.labels_refusal(samples, message.payload)
        return self.backend.activation_refusal(self.first, samples, message.payload)

    def receive_evaluation(self, sender: str, message: Exam | ExamLabels) -> None:
        """Accept a held-out batch or its labels."""
        if (
            sender != self.exchange.expected_sender(type(message).__name__)
            or not 0 <= message.number < self.backend.evaluation_batches
        ):
            return
        samples = self.backend.evaluation_batch_size(message.number)
        if isinstance(message, Exam):
            reason = self.backend.activation_refusal(self.first, samples, message.payload)
        else:
            reason = self.backend.labels_refusal(samples, message.payload)
        if reason is not None:
            self.report_refusal(sender, reason)
            return
        evaluator = self._evaluator_for(message.attempt)
        if evaluator is not None:
            evaluator.receive_batch(message)

    def _evaluator_for(self, attempt: int) -> StageEvaluator | None:
        """The evaluator of an attempt, which may be new; None if a later attempt has begun."""
        if self._evaluator is None or self._evaluator.attempt < attempt:
            self._evaluator = StageEvaluator(self, attempt)
        return self._evaluator if self._evaluator.attempt == attempt else None

    def handle_kept(self, holder: str, kept: Kept) -> None:
        for replicator in self._replicators:
            if replicator.holder == holder:
                replicator.handle_kept(kept)
        self._wake.notify()

    # --- messages to the coordinator -------------------------------------------------------------------------------

    def report_refusal(self, sender: str, reason: str) -> None:
        """Report that what a device sent cannot be used."""
        self.node.send(COORDINATOR, Refused(self.term, sender, reason))

    def send_report(self, times: PassTimes | None = None, loss: float | None = None) -> None:
        times, sent = times or PassTimes(), self.link.take_sent_bytes()
        layer_s, received = tuple(times.layer_s), self._receptions.take_transfers()
        report = Report(self.term, self.versions.applied, times.seconds, loss, sent, layer_s, received)
        self.node.send(COORDINATOR, report)

    def current_activity(self) -> Doing:
        """What the stage waits for, for a coordinator that misses a batch."""
        task = self._schedule.next_task() if self._schedule is not None else None
        delayed = self._awaited_copies(self._schedule, *task) if self._schedule is not None and task is not None else []
        awaits, sent = self.exchange.awaited_messages(), self.exchange.sent_messages()
        kept = [(each.holder, "Kept", each.awaited_version) for each in delayed if each.awaited_version is not None]
        copied = sum(replicator.sent_chunks for replicator in self._replicators)
        return Doing(self.term, (*awaits, *kept), sent, copied, self.processor.computing)

    # --- computation -----------------------------------------------------------------------------------------------

    async def _run_schedule(self) -> None:
        retry_s = float(self.settings.retry)
        pause = retry_s
        while True:
            schedule = self._schedule
            task = schedule.next_task() if schedule is not None else None
            missing = self.exchange.await_messages(() if task is None else self._needed_messages(*task))
            if schedule is None or task is None or missing or self._awaited_copies(schedule, *task):
                if missing and self._finishing:
                    self.node.send(COORDINATOR, Stuck(self.term))
                if not await self._wake.wait(None if task is None else pause):
                    self.exchange.request_missing()
                    pause = min(2 * pause, 4 * retry_s)
                continue
            pause = retry_s
            kind, micro_batch = task
            if kind == "forward":
                await self._forward_micro_batch(micro_batch)
            else:
                await self._backward_micro_batch(micro_batch, schedule)
            schedule.complete_task(kind)

    def _awaited_copies(self, schedule: StageSchedule, kind: Kind, micro_batch: int) -> list[StageReplicator]:
        """The copies without which a task would take the stage too far ahead of them."""
        if kind == "forward" or self._finishing or not schedule.updates_after(micro_batch):
            return []
        version = self.versions.applied + 1
        return [replicator for replicator in self._replicators if replicator.delays_version(version)]

    def _needed_messages(self, kind: Kind, micro_batch: int) -> list[MessageKey]:
        """The messages without which a task cannot begin."""
        if kind == "backward":
            return [] if self.is_last else [("Gradient", micro_batch)]
        self._check_version(micro_batch)
        names = [] if self.is_first else ["Activation", "Labels"] if self.is_last else ["Activation"]
        return [(name, micro_batch) for name in names]

    def _check_version(self, micro_batch: int) -> None:
        """Refuse an activation that claims a version which this stage does not hold and never will."""
        message = self.exchange.peek_message("Activation", micro_batch)
        if not isinstance(message, Activation) or not self.settings.schedule.vertical_sync:
            return
        if message.version not in self.versions.weights:
            self.exchange.pop_message("Activation", micro_batch)
            self.report_refusal(
                self.exchange.previous_device, f"it sent a micro-batch computed with version {message.version}"
            )

    async def _forward_micro_batch(self, micro_batch: int) -> None:
        self._newest_batch = micro_batch // self.settings.schedule.micro_batch_count
        self._newest_micro_batch = micro_batch
        version, arrived, labels = self._pop_inputs(micro_batch)
        weights, buffers, backend = self.versions.weights[version], self._buffers, self.backend
        first, last, ahead = self.is_first, self.is_last, self._predicted_steps(version)
        if first and not last:
            targets = Labels(backend.load_labels(micro_batch), term=self.term, part=micro_batch)
            self.exchange.send_message(self.exchange.last_device, targets)

        def run(before_layer: LayerCallback) -> Any:
            inputs = backend.load_inputs(micro_batch) if first else arrived
            targets = backend.load_labels(micro_batch) if first and last else labels
            return backend.forward(weights, buffers, micro_batch, inputs, targets, ahead, before_layer)

        forwarded, times = await self._compute_pass("forward", micro_batch, version, run)
        self._buffers, self.versions.forward_version = forwarded.buffers, version
        self._in_flight[micro_batch] = InFlightMicroBatch(forwarded, version, times)
        if last:
            self._loss_sum += (forwarded.loss_now or 0.0) * backend.micro_batch_weight(micro_batch)
        else:
            activation = Activation(forwarded.payload, term=self.term, part=micro_batch, version=version)
            self.exchange.send_message(self.exchange.next_device, activation)

    def _predicted_steps(self, version: int) -> float:
        """By how many whole steps to predict the weights, from the version a batch uses to the one it updates."""
        if not self.settings.schedule.predict:
            return 0.0
        return (self._newest_batch - version) * self.settings.lr_schedule.lr_factor(version, self.lr_drops)

    def _pop_inputs(self, micro_batch: int) -> tuple[int, Any, Payload | None]:
        """The version that a micro-batch uses on this stage, its activation and, on the last stage, its labels."""
        if self.is_first:
            return self.versions.applied, None, None
        message = self.exchange.pop_message("Activation", micro_batch)
        assert isinstance(message, Activation)
        labels = self.exchange.pop_message("Labels", micro_batch) if self.is_last else None
        version = message.version if self.settings.schedule.vertical_sync else self.versions.applied
        return version, message.payload, None if labels is None else labels.payload

    async def _backward_micro_batch(self, micro_batch: int, schedule: StageSchedule) -> None:
        sent = self._in_flight.pop(micro_batch)
        arrived = None if self.is_last else self.exchange.pop_message("Gradient", micro_batch).payload
        self.exchange.forget_sent("Activation", micro_batch)
        newest, total, backend = self.versions.newest, self._gradient_sum, self.backend
        lr = self.settings.lr_schedule.lr_factor(self.versions.applied, self.lr_drops)
        updates = schedule.updates_after(micro_batch)

        def run(before_layer: LayerCallback) -> Any:
            own, onward = backend.backward(sent.forwarded, arrived, before_layer)
            gradient = backend.accumulate_gradient(total, own, backend.micro_batch_weight(micro_batch))
            updated = backend.step(newest, gradient, sent.forwarded.buffers, lr) if updates else None
            return gradient, onward, updated

        result, times = await self._compute_pass("backward", micro_batch, sent.version, run)
        self._gradient_sum, onward, updated = result
        times = sent.times.plus(times)
        self._times = times if self._times is None else self._times.plus(times)
        if not self.is_first:
            gradient = Gradient(onward, term=self.term, part=micro_batch)
            self.exchange.send_message(self.exchange.previous_device, gradient)
        if updates:
            self._finish_step(updated, sent.forwarded.buffers)

    async def _compute_pass(
        self, kind: Kind, micro_batch: int, version: int, run: Callable[[LayerCallback], Any]
    ) -> PassResult:
        """Compute one pass of a micro-batch with this version."""
        schedule, samples = self.settings.schedule, self._sizes.count(micro_batch)
        by_layer = self.settings.adaptation.layers and is_timed_batch(
            micro_batch // schedule.micro_batch_count, self.versions.start
        )
        fields = {"batch": micro_batch, "version": version, "stage": self.index, "term": self.term}
        return await self.processor.compute_pass(kind, samples, run, fields, by_layer)

    def _finish_step(self, weights: Any, buffers: Any) -> None:
        """Store the next version, report it, and let the replicators copy it."""
        gradient, self._gradient_sum = self._gradient_sum, None
        versions, every = self.versions, self.settings.schedule.aggregate
        versions.applied += 1
        if every and versions.applied % every == 0:
            older = [versions.weights[version] for version in versions.averaged_versions()]
            weights = self.backend.average_versions([*older, weights])
        else:
            versions.steps[versions.applied] = (gradient, buffers)
        versions.store_version(weights)
        now = self.node.now()
        fields = {"batch": versions.applied - 1, "version": versions.applied, "stage": self.index, "term": self.term}
        self.node.record(Span(self.node.name, "step", now, now, fields))
        self.send_report(self._times, self._loss_sum if self.is_last else None)
        self._times, self._loss_sum = None, 0.0
        versions.drop_unneeded()
        for replicator in self._replicators:
            replicator.notify_version()
