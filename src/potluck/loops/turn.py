"""One turn of one device: pull the model, do the local work, push the update; in segments, all three at once.

    pull     ▒▒▒▒ ▒▒▒▒▒▒▒ ▒▒▒                                   a segment's arrival is the gate of its first layer
    compute      ░░░░ ░░░░░░░░░ ░░░ ████ ██████████ ████        forward ░, backward █
    push                                 ▒▒▒▒▒ ▒▒▒▒▒▒▒▒ ▒▒▒     a gradient that is ready is the signal to send it

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
    """One invitation and what comes of it."""

    def __init__(self, device: RoundsDevice, invite: Invite) -> None:
        self._device = device
        self._node = device.node
        self.number = invite.turn
        self._round = invite.round
        self._invite = invite
        self._identity = TurnIdentity(device.node.name, invite.round, invite.count)
        self._costs = device.costs(self._identity)
        self._segments: dict[int, tuple[int, int, Payload]] = {}
        self._arrived: dict[int, Latch] = {}
        self._send_began_at: dict[int, float] = {}  # when each segment began to be sent
        self._arrived_at: dict[int, float] = {}  # and when it was here
        self.accepted: dict[int, Latch] = {}
        self._ready: dict[int, Latch] = {}  # gradients of push segments, by first layer
        self._session: TrainingSession | None = None
        self._updates: dict[int, Push] = {}
        self._last_arrival = 0.0
        self._cuts = TurnSegments((), ())
        self._size = 0  # of the last mini-batch
        self._fractions: dict[int, float] = {}  # of a whole step's cost, by mini-batch, where each chooses its part
        self._uses_estimates = device.settings.transfer.uses_estimates

    def receive_segment(self, segment: Segment) -> None:
        """A segment of the model has arrived."""
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
        """Dropped on the way: what was sent counts for nothing, unless the last of it was accepted this very moment."""
        if self.accepted and all(latch.is_open for latch in self.accepted.values()):
            return
        for update in self._updates.values():
            assert self._session is not None
            self._session.retract_update(update.first, update.last, update.payload)

    async def _run_transfers(self) -> None:
        device = self._device
        cuts = device.settings.transfer.plan_segments(
            self._costs, device.estimates, device.batch_source.expected_batch_size()
        )
        if self._invite.ahead and device.last_push_segments:
            cuts = TurnSegments(device.last_push_segments, cuts.push)  # layers come back as they went
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
        """Ask for the segments in order, no more than `window` of them at once."""
        window = len(segments) if self._invite.ahead else self._device.settings.transfer.window
        async with asyncio.TaskGroup() as group:
            for place, (first, last) in enumerate(segments):
                if place >= window:
                    await self._arrived[segments[place - window][0]].wait()
                group.create_task(self._pull_segment(first, last))

    async def _pull_segment(self, first: int, last: int) -> None:
        node, asked = self._node, self._node.now()
        await self._request_answer(Pull(self.number, first, last), self._arrived[first])
        nbytes, seen = self._segments[first][2].nbytes, self._device.estimates
        waited = self._invite.ahead  # for others: only what came after it began to be sent says anything of the link
        pipelined = self._last_arrival > (self._send_began_at[first] if waited else asked)
        start = max(self._send_began_at[first] if waited else asked, self._last_arrival)
        self._last_arrival = node.now()
        if self._uses_estimates:
            trip = 0.0 if pipelined else seen.round_trip / 2 if waited else seen.round_trip
            seen.observe_pull(nbytes, node.now() - start - trip)
        self._record_span("pull", start, nbytes, (first, last))

    # --- compute ---------------------------------------------------------------------------------------------------

    async def _compute_update(self, plan: Callable[[LocalBatches], list[Step]]) -> None:
        supply = self._device.batch_source
        share = supply.ready_batches(self._invite) or await supply.wait_for_batches(self._invite)
        self._session, self._size, steps = self._start_session(share), share.sizes[-1], plan(share)
        await self._arrived[0].wait()
        start = self._node.now()
        await self._node.compute(Work(steps, lambda pace: self._run_training(pace, steps)))
        if share.report_losses is not None:
            share.report_losses(self._session.class_losses)
        if len(steps) == 1 and not callable(steps[0].seconds):  # gates on the way would count as slowness
            self._device.estimates.observe_compute(steps[0].seconds, self._node.now() - start)
        self._record_compute(start, steps, sum(share.sizes))
        self._record_fraction(share)

    def _start_session(self, share: LocalBatches) -> TrainingSession:
        device, count = self._device, self._invite.count
        factor = device.settings.local_schedule.lr_factor(self._round)
        return device.backend.start_session(
            self._identity,
            self._segments,
            share,
            factor,
            device.error_feedback,
            lambda name: self._node.rng(name, count),
        )

    def _run_training(self, pace: Pace, steps: list[Step]) -> None:
        assert self._session is not None
        if self._ready:
            self._session.train(PerLayerHooks(pace, self._costs.layer_count, len(steps)))
        elif self._device.backend.chooses_per_batch:
            self._session.train(PerBatchHooks(pace))
        else:
            self._session.train(SingleStepHooks())

    def _batch_steps(self, share: LocalBatches) -> list[Step]:
        """All in one; where every mini-batch chooses its part of the model, a step for each."""
        costs = self._costs
        if not self._device.backend.chooses_per_batch:
            return [Step(sum(map(costs.step_s, share.sizes)))]
        return [Step(self._chosen_cost(place, costs.step_s(size))) for place, size in enumerate(share.sizes)]

    def _chosen_cost(self, batch: int, whole_s: float) -> Callable[[], float]:
        """Choose what the mini-batch trains by what the device can do now; what that costs of a whole step."""

        return lambda: whole_s * self._choose_fraction(batch)

    def _choose_fraction(self, batch: int) -> float:
        """What a mini-batch trains with what the device can do now, as a share of the whole model's cost."""
        assert self._session is not None
        budget = self._device.compute_budget * self._node.speed()
        share = self._fractions[batch] = self._session.choose_submodel(batch, budget)
        return share

    def _layer_steps(self, share: LocalBatches) -> list[Step]:
        """Layer by layer forward through the first mini-batch and backward through the last; the rest in one."""
        costs, sizes = self._costs, share.sizes
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
        return self._scale_steps(steps, share) if self._device.backend.chooses_per_batch else steps

    def _scale_steps(self, steps: list[Step], share: LocalBatches) -> list[Step]:
        """With transfers cut, the parts of all mini-batches are chosen as the first begins."""
        whole, first = [step.seconds for step in steps], steps[0]

        def choose() -> float:
            shares = [self._choose_fraction(place) for place in range(len(share.sizes))]
            mean = sum(map(operator.mul, shares, share.sizes)) / sum(share.sizes)
            for step, seconds in zip(steps, whole, strict=True):
                assert not callable(seconds)
                step.seconds = seconds * mean
            assert not callable(first.seconds)
            return first.seconds

        first.seconds = choose
        return steps

    # --- push ------------------------------------------------------------------------------------------------------

    async def _push_segments(self, segments: tuple[Range, ...]) -> None:
        """Send each segment once its gradient is there and the one before has left (window 1: is accepted)."""
        moments: list[float] = []
        async with asyncio.TaskGroup() as group:
            for first, _ in segments:
                self._ready[first].then(lambda: moments.append(self._node.now()))
            async for first, last in self._push_order(segments):
                await self._push_segment(first, last)
                settled = group.create_task(self._wait_for_accept(first))
                if self._device.settings.transfer.window == 1:
                    await settled
        self._observe_speed(segments, moments)

    async def _push_order(self, segments: tuple[Range, ...]) -> AsyncIterator[Range]:
        """As their gradients get ready; with duplex transfers, of those that wait, the nearest to the input first."""
        left = list(segments)
        while left:
            await self._ready[left[0][0]].wait()
            ready = [segment for segment in left if self._ready[segment[0]].is_open]
            chosen = min(ready) if self._device.settings.transfer.drafts_next_round else ready[0]
            left.remove(chosen)
            yield chosen

    def _observe_speed(self, segments: tuple[Range, ...], moments: list[float]) -> None:
        """Between the first and the last gradient nothing but computation happened."""
        if len(moments) > 1:
            costs, size = self._costs, self._size
            nominal = sum(
                costs.backward_s(layer, size) for first, last in segments[1:] for layer in range(first, last + 1)
            )
            self._device.estimates.observe_compute(nominal, moments[-1] - moments[0])

    async def _push_segment(self, first: int, last: int) -> None:
        start, message = self._node.now(), self._encode_update(first, last)
        self._updates[first] = message
        await self._node.send(COORDINATOR, message)
        if self._uses_estimates:
            self._device.estimates.observe_push(message.payload.nbytes, self._node.now() - start)
        self._record_span("push", start, message.payload.nbytes, (first, last))

    async def _wait_for_accept(self, first: int) -> None:
        """Sent once; wait until it is accepted, and send it again if that takes too long."""
        await self._request_answer(self._updates[first], self.accepted[first], sent=True)

    def _encode_update(self, first: int, last: int) -> Push:
        session = self._session
        assert session is not None
        payload = session.encode(first, last)
        return Push(payload, turn=self.number, first=first, last=last, samples=session.samples, loss=session.loss)

    # --- both ------------------------------------------------------------------------------------------------------

    async def _request_answer(self, request: Pull | Push, reply: Latch, sent: bool = False) -> None:
        await answered(self._node, COORDINATOR, request, reply, self._device.settings.retry, sent)

    def _record_compute(self, start: float, steps: list[Step], samples: int) -> None:
        """One span; where transfers are cut, one for each segment of the first forward and the last backward pass."""
        if not self._ready:
            self._record_span("compute", start, samples=samples)
            return
        layers = self._costs.layer_count
        for first, last in sorted(self._cuts.pull):
            begun = max(start, self._arrived_at[first])
            start = self._record_span("compute", begun, layers=(first, last), end=steps[last].ended, way="forward")
        if len(steps) > 2 * layers:
            start = self._record_span("compute", start, end=steps[layers].ended)
        for first, last in sorted(self._cuts.push, reverse=True):
            count, end = samples if first == 0 else 0, steps[-1 - first].ended
            start = self._record_span("compute", start, layers=(first, last), samples=count, end=end, way="backward")

    def _record_fraction(self, share: LocalBatches) -> None:
        """How much was trained, of a whole step's cost on average over the samples; nothing where all always is."""
        part, places = self._device.submodel_fraction(self._identity), range(len(share.sizes))
        if part is None and not self._fractions:
            return
        chosen = [self._fractions[place] for place in places] if self._fractions else [1.0] * len(places)
        shares = chosen if part is None else [part * one for one in chosen]
        mean = sum(map(operator.mul, shares, share.sizes)) / sum(share.sizes)
        fields = {"round": self._round, "least": min(shares), "most": max(shares)}
        self._node.record(Scalar(self._node.name, "share", self._node.now(), mean, fields))

    def _record_span(
        self,
        name: str,
        start: float,
        nbytes: int = 0,
        layers: Range | None = None,
        samples: int = 0,
        end: float | None = None,
        way: str = "",
    ) -> float:
        """Something that lasted until now, or until `end`, which it gives back."""
        fields: dict[str, Any] = {"round": self._round}
        if samples:
            fields["samples"] = samples
        if nbytes:
            fields["bytes"] = nbytes
        if layers is not None and len(self._arrived) + len(self.accepted) > 2:
            fields["layers"] = layers
        if way:
            fields["pass"] = way
        end = self._node.now() if end is None else end
        self._node.record(Span(self._node.name, name, start, end, fields))
        return end
