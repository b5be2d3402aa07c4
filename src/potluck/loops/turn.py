"""One turn on a device: pull the model, train, push the update; cut into segments, the three overlap.

    pull     ▒▒▒▒ ▒▒▒▒▒▒▒ ▒▒▒                                   a layer waits until its segment has arrived
    compute      ░░░░ ░░░░░░░░░ ░░░ ████ ██████████ ████        forward ░, backward █
    push                                 ▒▒▒▒▒ ▒▒▒▒▒▒▒▒ ▒▒▒     a segment leaves once its gradients are ready

With several mini-batches only the first forward and the last backward pass overlap with transfers.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from potluck.journal import Scalar, Span
from potluck.loops.backends import LocalBatches, TrainingSession, TurnIdentity
from potluck.loops.messages import Accept, Invite, Pull, Push, Segment
from potluck.loops.node import COORDINATOR, Latch, MeasuredTransfer, Pace, Step, Work, answered
from potluck.loops.parts.model_transfer import Range, TurnSegments
from potluck.loops.training_hooks import PerBatchHooks, PerLayerHooks, SingleStepHooks
from potluck.model.pull_deltas import PulledSegment
from potluck.payload import Payload
from potluck.planning.layer_times import PassSeconds

if TYPE_CHECKING:
    from potluck.loops.rounds_device import RoundsDevice

__all__ = ["Turn"]


class Turn:
    """The device's view of one invitation, until its update is accepted or the turn is cancelled."""

    def __init__(self, device: RoundsDevice, invite: Invite) -> None:
        self._device = device
        self._context = device.context
        self._settings = device.context.settings
        self._estimates = device.context.estimates
        self._node = device.node
        self.number = invite.turn
        self._round = invite.round
        self._invite = invite
        self._identity = TurnIdentity(device.node.name, invite.round, invite.count)
        self._costs = device.context.costs(self._identity)
        self._segments: dict[int, tuple[int, int, Payload]] = {}
        self._arrived: dict[int, Latch] = {}  # empty until the cuts are planned
        self._early_segments: list[tuple[Segment, MeasuredTransfer | None]] = []  # arrived before that
        self._arrived_at: dict[int, float] = {}
        self._previous_arrival: dict[int, float] = {}  # of the segment before; 0 for the first
        self._pulled: dict[int, MeasuredTransfer] = {}  # how each segment arrived
        self._round_trips: list[float] = []
        self.accepted: dict[int, Latch] = {}
        self._ready: dict[int, Latch] = {}  # gradients of push segments, by first layer
        self._session: TrainingSession | None = None
        self._updates: dict[int, Push] = {}
        self._cuts = TurnSegments((), ())
        self._received = 0  # samples that other devices sent
        self._fractions: dict[int, float] = {}  # of a whole step's cost, by mini-batch, where each chooses its submodel
        self._uses_estimates = self._settings.transfer.uses_estimates

    def receive_segment(self, segment: Segment, transfer: MeasuredTransfer | None) -> None:
        """Take a segment of the model; one that arrives twice is used once."""
        if not self._arrived:
            self._early_segments.append((segment, transfer))
        elif segment.first in self._arrived and segment.first not in self._segments:
            now, previous = self._node.now(), max(self._arrived_at.values(), default=0.0)
            self._segments[segment.first] = (segment.first, segment.last, self._decode_segment(segment))
            self._arrived_at[segment.first], self._previous_arrival[segment.first] = now, previous
            if transfer is not None and segment.queued and previous:  # a gap before it is overhead
                transfer = transfer._replace(seconds=max(transfer.seconds, now - previous))
            if transfer is not None:
                self._pulled[segment.first] = transfer
            self._arrived[segment.first].open()

    def _decode_segment(self, segment: Segment) -> Payload:
        """The weights of a segment; once all have arrived, the device holds their version."""
        held, backend = self._context.held, self._context.backend
        if held is None:
            return segment.payload
        payload = backend.decode_segment(
            held, PulledSegment(segment.first, segment.last, segment.payload, segment.version, segment.base)
        )
        pulled = [*self._segments.values(), (segment.first, segment.last, payload)]
        if sum(last - first + 1 for first, last, _ in pulled) == self._costs.layer_count:
            backend.hold_version(held, segment.version, pulled)
        return payload

    def receive_accept(self, accept: Accept) -> None:
        """A segment of the update has arrived; an answer that arrives twice counts once."""
        latch = self.accepted.get(accept.first)
        if latch is not None:
            latch.open()

    async def run(self) -> None:
        try:
            await self._run_transfers()
        except asyncio.CancelledError:
            self._retract_updates()
            raise
        finally:
            self._segments.clear()
            self._updates.clear()
            self._session = None

    def _observe_pull(self) -> None:
        """Update the estimates of the link with how the model arrived.

        Before the update is complete, because a checkpoint has the estimates and is saved once the coordinator has it.
        """
        self._estimates.down.observe_transfers([(each.nbytes, each.seconds) for each in self._pulled.values()])
        if self._round_trips:
            self._estimates.observe_round_trip(max(min(self._round_trips), 0.0))

    def _retract_updates(self) -> None:
        """Undo what a cancelled turn has sent, unless all of it was accepted before the cancellation took effect."""
        if self.accepted and all(latch.is_open for latch in self.accepted.values()):
            return
        for update in self._updates.values():
            assert self._session is not None
            self._session.retract_update(update.first, update.last, update.payload)

    async def _run_transfers(self) -> None:
        device, frozen = self._device, self._context.frozen
        if frozen is not None and not frozen.is_complete:
            await frozen.fetch_all()
        if self._uses_estimates:
            self._estimates.up.observe_transfers(self._invite.pushed)
        samples = self._context.batch_source.expected_batch_size()
        cuts = self._settings.transfer.plan_segments(self._costs, self._estimates, samples)
        if _are_all_layers(self._invite.segments, self._costs.layer_count):
            cuts = cuts._replace(push=self._invite.segments)
        if self._invite.ahead and device.last_push_segments:  # layers return in the segments in which they left
            cuts = cuts._replace(pull=tuple(sorted(device.last_push_segments)))
        self._cuts, device.last_push_segments = cuts, cuts.push
        self._arrived = {first: Latch() for first, _ in cuts.pull}
        while self._early_segments:
            self.receive_segment(*self._early_segments.pop(0))
        self.accepted = {first: Latch() for first, _ in cuts.push}
        if len(cuts.pull) == len(cuts.push) == 1:
            await self._pull_segment(*cuts.pull[0])
            await self._compute_update(self._batch_steps)
            await self._push_segment(*cuts.push[0])
            await self._wait_for_accept(cuts.push[0][0])
        else:
            await self._run_overlapped(cuts)

    async def _run_overlapped(self, cuts: TurnSegments) -> None:
        self._ready = {first: Latch() for first, _ in cuts.push}
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pull_segments(cuts.pull))
            group.create_task(self._compute_update(self._layer_steps))
            await self._push_segments(cuts.push)

    # --- pull ------------------------------------------------------------------------------------------------------

    async def _pull_segments(self, segments: tuple[Range, ...]) -> None:
        """Request the segments in order, at most `window` of them at a time."""
        window = len(segments) if self._invite.ahead else self._settings.transfer.window
        async with asyncio.TaskGroup() as group:
            for index, (first, last) in enumerate(segments):
                if index >= window:
                    await self._arrived[segments[index - window][0]].wait()
                group.create_task(self._pull_segment(first, last))

    async def _pull_segment(self, first: int, last: int) -> None:
        node, asked = self._node, self._node.now()
        held = self._context.held
        pull = Pull(self.number, first, last, 0 if held is None else held.version)
        await self._request_answer(pull, self._arrived[first], sent=self._invite.ahead)  # then it comes unasked
        nbytes, transfer = self._segments[first][2].nbytes, self._pulled.get(first)
        start = max(asked, self._previous_arrival[first])
        if transfer is not None and self._invite.ahead:  # on a draft the answer waits for other devices
            start = max(start, node.now() - transfer.seconds)
        elif transfer is not None and self._previous_arrival[first] <= asked:
            self._round_trips.append(node.now() - asked - transfer.seconds)
        self._record_span("pull", start, **_bytes_field(nbytes), **self._layers_field(first, last))

    # --- compute ---------------------------------------------------------------------------------------------------

    async def _compute_update(self, plan: Callable[[LocalBatches], list[Step]]) -> None:
        source = self._context.batch_source
        batches = source.ready_batches(self._invite) or await source.wait_for_batches(self._invite)
        self._session, steps = self._start_session(batches), plan(batches)
        self._received = batches.received
        prepares = bool(self._costs.once_flop) and not self._estimates.is_prepared
        if prepares:
            assert not callable(steps[0].seconds)
            steps[0].seconds += self._costs.once_s
        await self._arrived[0].wait()
        start = self._node.now()
        await self._node.compute(Work(steps, lambda pace: self._run_training(pace, steps)))
        self._estimates.is_prepared = True
        if batches.report_losses is not None:
            batches.report_losses(self._session.class_losses)
        if self._uses_estimates and not prepares:
            self._observe_layers(steps, batches, self._node.now() - start)
            self._observe_pull()
            self._record_bandwidth()
        self._record_compute(start, steps, sum(batches.sizes))
        self._record_fraction(batches)

    def _observe_layers(self, steps: list[Step], batches: LocalBatches, seconds: float) -> None:
        """Update the estimates of the layers: one by one where each had a step of its own, else by the whole."""
        layers, estimate = self._costs.layer_count, self._estimates.layers
        if self._ready:
            forward, backward = _timed_steps(steps[:layers]), _timed_steps(steps[: -layers - 1 : -1])
            if len(forward) == len(backward) == layers:
                nominal = PassSeconds([cost for cost, _ in forward], [cost for cost, _ in backward])
                took = PassSeconds([spent for _, spent in forward], [spent for _, spent in backward])
                estimate.observe_passes(nominal, took)
        elif len(steps) == 1 and not callable(steps[0].seconds):
            estimate.observe_total(self._costs.pass_seconds(sum(batches.sizes)), seconds)

    def _start_session(self, batches: LocalBatches) -> TrainingSession:
        count = self._invite.count
        return self._context.backend.start_session(
            self._identity,
            self._segments,
            batches,
            self._settings.local_schedule.lr_factor(self._round, self._invite.drops),
            self._context.carried_state,
            lambda name: self._node.rng(name, count),
        )

    def _run_training(self, pace: Pace, steps: list[Step]) -> None:
        assert self._session is not None
        if self._ready:
            self._session.train(PerLayerHooks(pace, self._costs.layer_count, len(steps)))
        elif self._context.backend.chooses_per_batch:
            self._session.train(PerBatchHooks(pace))
        else:
            self._session.train(SingleStepHooks())

    def _batch_steps(self, batches: LocalBatches) -> list[Step]:
        """One step for all mini-batches, or one for each where each chooses its submodel."""
        costs = self._costs
        if not self._context.backend.chooses_per_batch:
            return [Step(sum(map(costs.step_s, batches.sizes)))]
        return [Step(self._chosen_cost(index, costs.step_s(size))) for index, size in enumerate(batches.sizes)]

    def _chosen_cost(self, batch: int, whole_s: float) -> Callable[[], float]:
        """The cost of a mini-batch, which is known once it begins and its submodel is chosen."""
        return lambda: whole_s * self._choose_fraction(batch)

    def _choose_fraction(self, batch: int) -> float:
        """Choose what a mini-batch trains at the device's current speed; the fraction of the whole model's cost."""
        assert self._session is not None
        budget = self._context.compute_budget * self._node.speed()
        self._fractions[batch] = self._session.choose_submodel(batch, budget)
        return self._fractions[batch]

    def _layer_steps(self, batches: LocalBatches) -> list[Step]:
        """A step per layer for the first forward and the last backward pass; one step for everything between."""
        costs, sizes = self._costs, batches.sizes
        layers = range(costs.layer_count)
        forward = [
            Step(costs.forward_s(layer, sizes[0]), gate=self._arrived.get(layer), timed=True) for layer in layers
        ]
        between = sum(map(costs.step_s, sizes)) - sum(costs.forward_s(layer, sizes[0]) for layer in layers)
        between -= sum(costs.backward_s(layer, sizes[-1]) for layer in layers)
        backward = [
            Step(costs.backward_s(layer, sizes[-1]), signal=self._ready.get(layer), timed=True)
            for layer in reversed(layers)
        ]
        steps = [*forward, *([Step(between, timed=True)] if len(sizes) > 1 else []), *backward]
        return self._scale_steps(steps, batches) if self._context.backend.chooses_per_batch else steps

    def _scale_steps(self, steps: list[Step], batches: LocalBatches) -> list[Step]:
        """Where transfers are cut, all mini-batches choose their submodels when the first one begins."""
        whole, first = [step.seconds for step in steps], steps[0]

        def choose() -> float:
            fractions = [self._choose_fraction(index) for index in range(len(batches.sizes))]
            mean = sum(map(operator.mul, fractions, batches.sizes)) / sum(batches.sizes)
            for step, seconds in zip(steps, whole, strict=True):
                assert not callable(seconds)
                step.seconds = seconds * mean
            assert not callable(first.seconds)
            return first.seconds

        first.seconds = choose
        return steps

    # --- push ------------------------------------------------------------------------------------------------------

    async def _push_segments(self, segments: tuple[Range, ...]) -> None:
        """Send each segment once its gradient is ready and the previous one has left (window 1: is accepted)."""
        async with asyncio.TaskGroup() as group:
            for first, last in segments:
                await self._ready[first].wait()
                await self._push_segment(first, last)
                accepted = group.create_task(self._wait_for_accept(first))
                if self._settings.transfer.window == 1:
                    await accepted

    async def _push_segment(self, first: int, last: int) -> None:
        start, message = self._node.now(), self._encode_update(first, last)
        self._updates[first] = message
        await self._node.send(COORDINATOR, message)
        nbytes = message.payload.nbytes
        self._record_span("push", start, **_bytes_field(nbytes), **self._layers_field(first, last))

    async def _wait_for_accept(self, first: int) -> None:
        """Wait until a pushed segment is accepted, sending it again if that takes too long."""
        await self._request_answer(self._updates[first], self.accepted[first], sent=True)

    def _encode_update(self, first: int, last: int) -> Push:
        session = self._session
        assert session is not None
        payload = session.encode(first, last)
        return Push(
            payload,
            turn=self.number,
            first=first,
            last=last,
            samples=session.samples,
            loss=session.loss,
            received=self._received,
            kept=session.kept,
        )

    async def _request_answer(self, request: Pull | Push, reply: Latch, sent: bool = False) -> None:
        await answered(self._node, COORDINATOR, request, reply, self._settings.retry, sent)

    # --- journal ---------------------------------------------------------------------------------------------------

    def _record_compute(self, start: float, steps: list[Step], samples: int) -> None:
        """Record one span, or one for each segment of the first forward and the last backward pass."""
        if not self._ready:
            self._record_span("compute", start, samples=samples)
            return
        layers = self._costs.layer_count
        for first, last in sorted(self._cuts.pull):
            begun = max(start, self._arrived_at[first])
            fields = {**self._layers_field(first, last), "pass": "forward"}
            start = self._record_span("compute", begun, steps[last].ended, **fields)
        if len(steps) > 2 * layers:
            start = self._record_span("compute", start, steps[layers].ended)
        for first, last in sorted(self._cuts.push, reverse=True):
            count = {"samples": samples} if first == 0 and samples else {}
            fields = {**count, **self._layers_field(first, last), "pass": "backward"}
            start = self._record_span("compute", start, steps[-1 - first].ended, **fields)

    def _record_bandwidth(self) -> None:
        """Record what the device believes of its link, where transfers are planned from that."""
        down, up = self._estimates.down.seconds_per_byte, self._estimates.up.seconds_per_byte
        if down and up:
            fields = {"round": self._round, "up": 1 / up, "round_trip": self._estimates.round_trip}
            self._node.record(Scalar(self._node.name, "bandwidth", self._node.now(), 1 / down, fields))

    def _record_fraction(self, batches: LocalBatches) -> None:
        """Record the trained fraction of a whole step's cost, averaged over the samples, unless it is always all."""
        submodel, sizes = self._context.submodel_fraction(self._identity), batches.sizes
        if submodel is None and not self._fractions:
            return
        chosen = [self._fractions[index] for index in range(len(sizes))] if self._fractions else [1.0] * len(sizes)
        fractions = chosen if submodel is None else [submodel * fraction for fraction in chosen]
        mean = sum(map(operator.mul, fractions, sizes)) / sum(sizes)
        fields = {"round": self._round, "least": min(fractions), "most": max(fractions)}
        self._node.record(Scalar(self._node.name, "share", self._node.now(), mean, fields))

    def _record_span(self, name: str, start: float, end: float | None = None, **fields: Any) -> float:
        """Record a span that ends now or at `end`; its end."""
        end = self._node.now() if end is None else end
        self._node.record(Span(self._node.name, name, start, end, {"round": self._round, **fields}))
        return end

    def _layers_field(self, first: int, last: int) -> dict[str, Any]:
        """The layers of a segment, unless it is the whole model in both directions."""
        return {"layers": (first, last)} if len(self._arrived) + len(self.accepted) > 2 else {}


def _timed_steps(steps: list[Step]) -> list[tuple[float, float]]:
    """The nominal cost of each step that the work's function has run, and the seconds that it took."""
    return [
        (step.seconds, step.ended - step.began)
        for step in steps
        if step.began is not None and not callable(step.seconds)
    ]


def _are_all_layers(segments: Sequence[Range], layers: int) -> bool:
    """Whether these segments together are all layers, each once."""
    nexts = [0]
    for first, last in sorted(segments):
        if first != nexts[-1] or last < first:
            return False
        nexts.append(last + 1)
    return nexts[-1] == layers


def _bytes_field(nbytes: int) -> dict[str, int]:
    return {"bytes": nbytes} if nbytes else {}
