"""A stage at work: it does what its course says is due, as soon as what it needs has arrived.

    before ──Activation──▶ forward ──Activation──▶ next
           ◀──Gradient─── backward ◀──Gradient───        then the step: version v becomes v + 1

The weights that a batch met on its way forward live on in its graph until it comes back; its gradient is applied to the
newest version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from potluck.journal import Span
from potluck.loops.messages import Bulky
from potluck.loops.node import COORDINATOR, Node, Step, Work
from potluck.loops.pipeline.messages import (
    Activation,
    Assign,
    Doing,
    Exam,
    Examine,
    ExamLabels,
    Gradient,
    Kept,
    Labels,
    Refused,
    Report,
    Resend,
    Stuck,
)
from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.loops.pipeline.settings import Pipeline
from potluck.loops.pipeline.stage_backend import MicroBatchSizes, StageBackend
from potluck.loops.pipeline.stage_evaluator import StageEvaluator
from potluck.loops.pipeline.stage_link import BackgroundTaskGroup, StageLink, WakeSignal
from potluck.loops.pipeline.stage_replicator import StageReplicator
from potluck.loops.pipeline.stage_schedules import StageSchedule
from potluck.loops.pipeline.version_store import VersionStore
from potluck.payload import Payload
from potluck.planning.schedule.stage_rules import Kind

__all__ = ["PipelineStage", "StageContext"]

_STEPS_KEPT = 3


class StageContext(NamedTuple):
    """What a stage works with."""

    node: Node
    settings: Pipeline
    backend: StageBackend
    costs: PipelineCosts
    flops: float
    sizes: MicroBatchSizes
    version_store: VersionStore


class InFlightMicroBatch(NamedTuple):
    """A part between its forward and its backward."""

    forwarded: Any
    version: int
    seconds: float


class PipelineStage:
    """One device's layers in one term."""

    def __init__(
        self, shop: StageContext, assign: Assign, numbers: Any, failed: Callable[[BaseException], None]
    ) -> None:
        self.node, self.settings, self.backend, self._costs, self._flops, self._sizes, self._version_store = shop
        self.term, self.start, self._start_made_in_term = assign.term, assign.version, assign.made
        self.index, self._stages = assign.order.index(shop.node.name), len(assign.order)
        self._order, self.window = assign.order, assign.windows[self.index]
        self._in_flight = max(1, *assign.windows) * self.settings.schedule.micro_batch_count  # parts, at most
        ends = (0, *assign.cuts, self._costs.layer_count)
        self.first, self.last = ends[self.index], ends[self.index + 1] - 1
        self._stride = assign.stride
        self.versions: dict[int, Any] = {}
        self.steps: dict[int, tuple[Any, Any]] = {}  # what led to a version: a gradient and the buffers
        self.applied = self.start
        self._forward_version = self.start  # the version that the latest forward met
        self._buffers = numbers.buffers
        self._secure_version = self.start
        self._gradient_sum: Any = None
        self._loss_sum = self._seconds = 0.0  # of the batch whose parts are coming back
        self._schedule: StageSchedule | None = None
        self._range_start = -1
        self._finishing = False
        self._newest_batch = self._newest_micro_batch = -1  # the newest batch and part whose forward was begun
        self._inbox: dict[tuple[str, int], Bulky] = {}
        self._awaited: list[tuple[str, int]] = []  # what its work waits for now
        self._sent_log: dict[tuple[str, int], tuple[str, Bulky, asyncio.Task[None]]] = {}
        self._micro_batches_in_flight: dict[int, InFlightMicroBatch] = {}
        self._evaluator: StageEvaluator | None = None
        self._wake = WakeSignal()
        self._task_group = BackgroundTaskGroup(failed)
        self.link = StageLink(self.node, self._task_group)
        self._store_version(self.start, numbers)
        self._replicators = self._start_replicators(assign)
        self._task_group.start_task(self._run_schedule())

    # --- what it is told -------------------------------------------------------------------------------------------

    def begin_range(self, start: int, end: int) -> None:
        """A stretch of batches; said again, it changes nothing."""
        if start > self._range_start:
            self._range_start = start
            self._schedule = self.settings.schedule.stage_schedule(self.window, start, end)
            self._wake.notify()
        self.send_report()

    def close_range(self, end: int | None) -> int | None:
        """End the stretch before a batch, or as soon as possible; gives back where it ends."""
        if self._schedule is None:
            return None
        if end is None:
            end = min(max(self._schedule.first_unstarted_batch(), self._newest_batch + 1), self._schedule.end_batch)
        if end < self._schedule.end_batch:
            self._schedule.end_before(end)
            self._wake.notify()
        return self._schedule.end_batch

    def finish_in_flight(self) -> None:
        """Only apply what comes back from here on, and say when no more can come."""
        self._finishing = True
        self.close_range(None)
        self._wake.notify()

    def receive_micro_batch(self, sender: str, message: Activation | Labels | Gradient) -> None:
        """What comes twice, since it was asked for again, is taken once."""
        if sender != self._expected_sender(type(message).__name__) or not self._is_awaited(message):
            return
        reason = self._payload_refusal(message)
        if reason is not None:
            self.report_refusal(sender, reason)
            return
        self._inbox[type(message).__name__, message.part] = message
        self._wake.notify()

    def report_refusal(self, sender: str, reason: str) -> None:
        """What a device sent cannot be used."""
        self.node.send(COORDINATOR, Refused(self.term, sender, reason))

    def _expected_sender(self, what: str) -> str | None:
        """Who sends it to this stage."""
        place = 0 if what.endswith("Labels") else self.index + (1 if what == "Gradient" else -1)
        needless = self.is_first if what != "Gradient" else self.is_last
        return None if needless or (what.endswith("Labels") and not self.is_last) else self._order[place]

    def _is_awaited(self, message: Activation | Labels | Gradient) -> bool:
        if isinstance(message, Gradient):
            return message.part in self._micro_batches_in_flight
        next_part = max(self._newest_micro_batch + 1, self.start * self.settings.schedule.micro_batch_count)
        return self._newest_micro_batch < message.part < next_part + 2 * self._in_flight

    def _payload_refusal(self, message: Activation | Labels | Gradient) -> str | None:
        """Why what arrived cannot be computed with."""
        if isinstance(message, Gradient):
            return self.backend.gradient_refusal(self._micro_batches_in_flight[message.part].forwarded, message.payload)
        samples = self._sizes.count(message.part)
        if isinstance(message, Labels):
            return self.backend.labels_refusal(samples, message.payload)
        return self.backend.activation_refusal(self.first, samples, message.payload)

    def resend_message(self, sender: str, asked: Resend) -> None:
        """Send again what someone misses, unless it is still on its way or not yet made."""
        found = self._sent_log.get((asked.what, asked.part))
        if found is not None and found[0] == sender and found[2].done():
            self._send_logged(*found[:2])

    def handle_kept(self, keeper: str, kept: Kept) -> None:
        for replicator in self._replicators:
            if replicator.keeper == keeper:
                replicator.handle_kept(kept)

    def set_secure_version(self, version: int) -> None:
        self._secure_version = max(self._secure_version, version)
        self._drop_versions()

    def send_report(self, seconds: float = 0.0, loss: float | None = None) -> None:
        self.node.send(COORDINATOR, Report(self.term, self.applied, seconds, loss, self.link.take_sent_bytes()))

    def current_activity(self) -> Doing:
        """What it waits for, and what it has sent: for who wonders why no batch comes."""
        awaits = tuple(
            (giver, what, part) for what, part in self._awaited if (giver := self._expected_sender(what)) is not None
        )
        return Doing(self.term, awaits, tuple(key for key, sent in self._sent_log.items() if sent[2].done()))

    def start_evaluation(self, examine: Examine) -> None:
        """Take part in measuring the model; said again, it changes nothing."""
        examiner = self._evaluator_for(examine.attempt)
        if examiner is not None and not examiner.has_started:
            examiner.has_started = True
            self._task_group.start_task(examiner.run(examine))

    def receive_evaluation(self, sender: str, message: Exam | ExamLabels) -> None:
        if (
            sender != self._expected_sender(type(message).__name__)
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
        examiner = self._evaluator_for(message.attempt)
        if examiner is not None:
            examiner.receive_batch(message)

    def _evaluator_for(self, attempt: int) -> StageEvaluator | None:
        """That of an attempt, which may be new; None for one that is void."""
        if self._evaluator is None or self._evaluator.attempt < attempt:
            self._evaluator = StageEvaluator(self, attempt)
        return self._evaluator if self._evaluator.attempt == attempt else None

    def cancel_tasks(self) -> None:
        self._task_group.cancel_all()

    def term_that_made(self, version: int) -> int:
        """The term that made one of its versions."""
        return self.term if version > self.start else self._start_made_in_term

    # --- the work --------------------------------------------------------------------------------------------------

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self._stages - 1

    @property
    def next_device(self) -> str:
        return self._order[self.index + 1]

    @property
    def last_device(self) -> str:
        return self._order[-1]

    def forward_s(self, samples: int) -> float:
        return self._costs.stage_forward_flop(self.first, self.last, samples) / self._flops

    async def _run_schedule(self) -> None:
        pause = float(self.settings.retry)
        while True:
            task = self._schedule.next_task() if self._schedule is not None else None
            self._awaited = missing = [] if task is None else self._missing_inputs(*task)
            if task is None or missing:
                if missing and self._finishing:
                    self.node.send(COORDINATOR, Stuck(self.term))
                if not await self._wake.wait(None if task is None else pause):
                    self._request_missing(missing)
                    pause = min(2 * pause, 4 * float(self.settings.retry))
                continue
            pause = float(self.settings.retry)
            course = self._schedule
            assert course is not None
            await (
                self._forward_micro_batch(task[1])
                if task[0] == "forward"
                else self._backward_micro_batch(task[1], course)
            )
            course.complete_task(task[0])

    def _missing_inputs(self, kind: Kind, part: int) -> list[tuple[str, int]]:
        """What must arrive before a task can begin."""
        needed = []
        if kind == "backward" and not self.is_last:
            needed = ["Gradient"]
        elif kind == "forward" and not self.is_first:
            needed = ["Activation", "Labels"] if self.is_last else ["Activation"]
        if kind == "forward":
            self._check_version(part)
        return [(what, part) for what in needed if (what, part) not in self._inbox]

    def _check_version(self, part: int) -> None:
        """A part that says it met a version which is not here, nor can be, is not let in."""
        message = self._inbox.get(("Activation", part))
        if not isinstance(message, Activation) or not self.settings.schedule.vertical_sync:
            return
        if message.version not in self.versions:
            del self._inbox["Activation", part]
            self.report_refusal(self._order[self.index - 1], f"it sent a part that met version {message.version}")

    def _request_missing(self, missing: list[tuple[str, int]]) -> None:
        for what, part in missing:
            giver = self._expected_sender(what)
            assert giver is not None
            self.node.send(giver, Resend(self.term, what, part))

    async def _forward_micro_batch(self, part: int) -> None:
        self._newest_batch, self._newest_micro_batch = part // self.settings.schedule.micro_batch_count, part
        version, arrived, labels = self._pop_inputs(part)
        numbers, buffers, mathematics = self.versions[version], self._buffers, self.backend
        first, last, ahead = self.is_first, self.is_last, self._predicted_steps(version)
        if first and not last:
            self._send_logged(self._order[-1], Labels(mathematics.load_labels(part), term=self.term, part=part))

        def run(pace: object) -> Any:
            inputs = mathematics.load_inputs(part) if first else arrived
            targets = mathematics.load_labels(part) if first and last else labels
            return mathematics.forward(numbers, buffers, part, inputs, targets, ahead)

        forwarded, seconds = await self._compute_pass("forward", part, version, run)
        self._buffers, self._forward_version = forwarded.buffers, version
        self._micro_batches_in_flight[part] = InFlightMicroBatch(forwarded, version, seconds)
        if last:
            self._loss_sum += (forwarded.loss_now or 0.0) * mathematics.micro_batch_weight(part)
        else:
            self._send_logged(
                self._order[self.index + 1],
                Activation(forwarded.payload, term=self.term, part=part, version=version),
            )

    def _predicted_steps(self, version: int) -> float:
        """Whole steps (smaller where the learning rate is) from the version that a batch meets to its own."""
        if not self.settings.schedule.predict:
            return 0.0
        return (self._newest_batch - version) * self.settings.lr_schedule.lr_factor(version)

    def _pop_inputs(self, part: int) -> tuple[int, Any, Payload | None]:
        """The version that a part meets here, and what came with it."""
        if self.is_first:
            return self.applied, None, None
        message = self._inbox.pop(("Activation", part))
        assert isinstance(message, Activation)
        labels = self._inbox.pop(("Labels", part)) if self.is_last else None
        version = message.version if self.settings.schedule.vertical_sync else self.applied
        return version, message.payload, None if labels is None else labels.payload

    async def _backward_micro_batch(self, part: int, course: StageSchedule) -> None:
        flight = self._micro_batches_in_flight.pop(part)
        arrived = None if self.is_last else self._inbox.pop(("Gradient", part)).payload
        self._sent_log.pop(("Activation", part), None)
        newest, total, mathematics = self.versions[self.applied], self._gradient_sum, self.backend
        lr, steps = self.settings.lr_schedule.lr_factor(self.applied), course.updates_after(part)

        def run(pace: object) -> Any:
            own, onward = mathematics.backward(flight.forwarded, arrived)
            mixed = mathematics.accumulate_gradient(total, own, mathematics.micro_batch_weight(part))
            stepped = mathematics.step(newest, mixed, flight.forwarded.buffers, lr) if steps else None
            return mixed, onward, stepped

        (self._gradient_sum, onward, stepped), seconds = await self._compute_pass("backward", part, flight.version, run)
        self._seconds += flight.seconds + seconds
        if not self.is_first:
            self._send_logged(self._order[self.index - 1], Gradient(onward, term=self.term, part=part))
        if steps:
            self._finish_step(stepped, flight.forwarded.buffers)

    async def _compute_pass(self, kind: Kind, part: int, version: int, run: Callable[[Any], Any]) -> tuple[Any, float]:
        """Do it, and say how long it took."""
        cost = self._costs.stage_forward_flop if kind == "forward" else self._costs.stage_backward_flop
        began = self.node.now()
        seconds = cost(self.first, self.last, self._sizes.count(part)) / self._flops
        result = await self.node.compute(Work([Step(seconds)], run, kind))
        now = self.node.now()
        fields = {"batch": part, "version": version, "stage": self.index, "term": self.term}
        self.node.record(Span(self.node.name, kind, began, now, fields))
        return result, now - began

    def _finish_step(self, numbers: Any, buffers: Any) -> None:
        """The next version is there."""
        gradient, self._gradient_sum = self._gradient_sum, None
        self.applied += 1
        every = self.settings.schedule.aggregate
        if every and self.applied % every == 0:
            older = range(max(self.start, self.applied - self.window + 1), self.applied)
            numbers = self.backend.average_versions([*(self.versions[version] for version in older), numbers])
        else:
            self.steps[self.applied] = (gradient, buffers)
        self._store_version(self.applied, numbers)
        now = self.node.now()
        fields = {"batch": self.applied - 1, "version": self.applied, "stage": self.index, "term": self.term}
        self.node.record(Span(self.node.name, "step", now, now, fields))
        self.send_report(self._seconds, self._loss_sum if self.is_last else None)
        self._seconds = self._loss_sum = 0.0
        self._drop_versions()
        for replicator in self._replicators:
            replicator.notify_version()

    # --- what it holds ---------------------------------------------------------------------------------------------

    def _store_version(self, version: int, numbers: Any) -> None:
        self.versions[version] = numbers
        self._version_store.add_version(version, self.term_that_made(version), self.first, self.last, numbers)

    def _drop_versions(self) -> None:
        """Drop the versions that nobody can ask for any more."""
        used = self._forward_version if self.settings.schedule.vertical_sync else self.applied
        aggregated = self.applied - self.window + 1 if self.settings.schedule.aggregate else self.applied
        floor = min(used, aggregated)

        def wanted(version: int) -> bool:
            return version >= floor or (version >= self._secure_version and self._is_copied_version(version))

        self.versions = {version: numbers for version, numbers in self.versions.items() if wanted(version)}
        self.steps = {version: step for version, step in self.steps.items() if version > self.applied - _STEPS_KEPT}
        own = (self.first, self.last)
        self._version_store.retain_versions(
            lambda version, *layers: layers != own or version <= self.start or version in self.versions
        )

    def _is_copied_version(self, version: int) -> bool:
        central = self.settings.replication.central_stride()
        strides = [stride for stride in (self._stride, central) if stride]
        return version == self.start or any(version % stride == 0 for stride in strides)

    def _start_replicators(self, assign: Assign) -> list[StageReplicator]:
        """Those who send its copies: to its keeper and to the coordinator, who keeps them where nobody else does."""
        keepers = {assign.keepers[self.index] if assign.keepers else COORDINATOR: assign.stride}
        keepers[COORDINATOR] = self.settings.replication.central_stride() or keepers.get(COORDINATOR, 0)
        found = [StageReplicator(self, keeper, stride) for keeper, stride in keepers.items() if stride]
        for replicator in found:
            self._task_group.start_task(replicator.run())
        return found

    def _send_logged(self, to: str, message: Bulky) -> None:
        part: int = message.part  # type: ignore[attr-defined]
        key = type(message).__name__, part
        self._sent_log[key] = (to, message, self.link.send(to, message, batch=part))
        behind = part - 3 * max(1, self.window) * self.settings.schedule.micro_batch_count
        for old in [key for key in self._sent_log if key[1] < behind]:
            del self._sent_log[old]
