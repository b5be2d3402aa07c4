"""One turn on a device: pull the model, train, push the update; cut into segments, the three overlap.

    pull     ▒▒▒▒ ▒▒▒▒▒▒▒ ▒▒▒                                   a layer waits until its segment has arrived
    compute      ░░░░ ░░░░░░░░░ ░░░ ████ ██████████ ████        forward ░, backward █
    push                                 ▒▒▒▒▒ ▒▒▒▒▒▒▒▒ ▒▒▒     a segment leaves once its gradients are ready

With several mini-batches only the first forward and the last backward pass overlap with transfers.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from potluck.journal import Scalar, Span
from potluck.loops.backends import LocalBatches, TrainingSession, TurnIdentity
from potluck.loops.messages import Invite, Pull, Push, Segment
from potluck.loops.node import COORDINATOR, Latch, Pace, Step, Work, answered
from potluck.loops.parts.model_transfer import Range, TurnSegments
from potluck.loops.training_hooks import PerBatchHooks, PerLayerHooks, SingleStepHooks
from potluck.payload import Payload

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
        self._arrived: dict[int, Latch] = {}
        self._send_began_at: dict[int, float] = {}  # when the coordinator began to send each segment
        self._arrived_at: dict[int, float] = {}  # and when it arrived
        self.accepted: dict[int, Latch] = {}
        self._ready: dict[int, Latch] = {}  # gradients of push segments, by first layer
        self._session: TrainingSession | None = None
        self._updates: dict[int, Push] = {}
        self._last_arrival = 0.0
        self._cuts = TurnSegments((), ())
        self._size = 0  # of the latest mini-batch
        self._fractions: dict[int, float] = {}  # of a whole step's cost, by mini-batch, where each chooses its submodel
        self._uses_estimates = self._settings.transfer.uses_estimates

    def receive_segment(self, segment: Segment) -> None:
        """Take a segment of the model; one that arrives twice is used once."""
        if segment.first in self._arrived and segment.first not in self._segments:
            self._segments[segment.first] = (segment.first, segment.last, segment.payload)
            self._send_began_at[segment.first] = segment.begun
            self._arrived_at[segment.first] = self._node.now()
            self._arrived[segment.first].open()

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

    def _retract_updates(self) -> None:
        """Undo what a cancelled turn has sent, unless all of it was accepted before the cancellation took effect."""
        if self.accepted and all(latch.is_open for latch in self.accepted.values()):
            return
        for update in self._updates.values():
            assert self._session is not None
            self._session.retract_update(update.first, update.last, update.payload)

    async def _run_transfers(self) -> None:
        device = self._device
        samples = self._context.batch_source.expected_batch_size()
        cuts = self._settings.transfer.plan_segments(self._costs, self._estimates, samples)
        if self._invite.ahead and device.last_push_segments:
            cuts = TurnSegments(
                device.last_push_segments, cuts.push
            )  # layers return in the segments in which they left
        self._cuts, device.last_push_segments = cuts, cuts.push
        self._arrived = {first: Latch() for first, _ in cuts.pull}
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
        await self._request_answer(Pull(self.number, first, last), self._arrived[first])
        nbytes, estimates, ahead = self._segments[first][2].nbytes, self._estimates, self._invite.ahead
        # On a draft the answer waits for other devices; only the time after it began to be sent is the link's.
        began = self._send_began_at[first] if ahead else asked
        pipelined = self._last_arrival > began
        start = max(began, self._last_arrival)
        self._last_arrival = node.now()
        if self._uses_estimates:
            trip = 0.0 if pipelined else estimates.round_trip / 2 if ahead else estimates.round_trip
            estimates.observe_pull(nbytes, node.now() - start - trip)
        self._record_span("pull", start, **_bytes_field(nbytes), **self._layers_field(first, last))

    # --- compute ---------------------------------------------------------------------------------------------------

    async def _compute_update(self, plan: Callable[[LocalBatches], list[Step]]) -> None:
        source = self._context.batch_source
        batches = source.ready_batches(self._invite) or await source.wait_for_batches(self._invite)
        self._session, self._size, steps = self._start_session(batches), batches.sizes[-1], plan(batches)
        await self._arrived[0].wait()
        start = self._node.now()
        await self._node.compute(Work(steps, lambda pace: self._run_training(pace, steps)))
        if batches.report_losses is not None:
            batches.report_losses(self._session.class_losses)
        if len(steps) == 1 and not callable(steps[0].seconds):  # waiting for segments would count as slowness
            self._estimates.observe_compute(steps[0].seconds, self._node.now() - start)
        self._record_compute(start, steps, sum(batches.sizes))
        self._record_fraction(batches)

    def _start_session(self, batches: LocalBatches) -> TrainingSession:
        count = self._invite.count
        return self._context.backend.start_session(
            self._identity,
            self._segments,
            batches,
            self._settings.local_schedule.lr_factor(self._round),
            self._context.error_feedback,
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
        layers, lasts = range(costs.layer_count), {last for _, last in self._cuts.pull}
        forward = [
            Step(costs.forward_s(layer, sizes[0]), gate=self._arrived.get(layer), timed=layer in lasts)
            for layer in layers
        ]
        between = sum(map(costs.step_s, sizes)) - sum(costs.forward_s(layer, sizes[0]) for layer in layers)
        between -= sum(costs.backward_s(layer, sizes[-1]) for layer in layers)
        backward = [
            Step(costs.backward_s(layer, sizes[-1]), signal=self._ready.get(layer), timed=layer in self._ready)
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
        ready_times: list[float] = []
        async with asyncio.TaskGroup() as group:
            for first, _ in segments:
                self._ready[first].then(lambda: ready_times.append(self._node.now()))
            async for first, last in self._push_order(segments):
                await self._push_segment(first, last)
                accepted = group.create_task(self._wait_for_accept(first))
                if self._settings.transfer.window == 1:
                    await accepted
        self._observe_speed(segments, ready_times)

    async def _push_order(self, segments: tuple[Range, ...]) -> AsyncIterator[Range]:
        """The segments as their gradients get ready; with duplex transfers the one nearest to the input goes first."""
        left = list(segments)
        while left:
            await self._ready[left[0][0]].wait()
            ready = [segment for segment in left if self._ready[segment[0]].is_open]
            chosen = min(ready) if self._settings.transfer.drafts_next_round else ready[0]
            left.remove(chosen)
            yield chosen

    def _observe_speed(self, segments: tuple[Range, ...], ready_times: list[float]) -> None:
        """Between the first and the last gradient the device did nothing but compute."""
        if len(ready_times) > 1:
            costs, size = self._costs, self._size
            nominal = sum(
                costs.backward_s(layer, size) for first, last in segments[1:] for layer in range(first, last + 1)
            )
            self._estimates.observe_compute(nominal, ready_times[-1] - ready_times[0])

    async def _push_segment(self, first: int, last: int) -> None:
        start, message = self._node.now(), self._encode_update(first, last)
        self._updates[first] = message
        await self._node.send(COORDINATOR, message)
        if self._uses_estimates:
            self._estimates.observe_push(message.payload.nbytes, self._node.now() - start)
        nbytes = message.payload.nbytes
        self._record_span("push", start, **_bytes_field(nbytes), **self._layers_field(first, last))

    async def _wait_for_accept(self, first: int) -> None:
        """Wait until a pushed segment is accepted, sending it again if that takes too long."""
        await self._request_answer(self._updates[first], self.accepted[first], sent=True)

    def _encode_update(self, first: int, last: int) -> Push:
        session = self._session
        assert session is not None
        payload = session.encode(first, last)
        return Push(payload, turn=self.number, first=first, last=last, samples=session.samples, loss=session.loss)

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


def _bytes_field(nbytes: int) -> dict[str, int]:
    return {"bytes": nbytes} if nbytes else {}
