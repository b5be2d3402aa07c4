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
from potluck.loops.beat import LayerBeat, PlainBeat, StepBeat
from potluck.loops.mathematics import Session, Share, Whom
from potluck.loops.messages import Invite, Pull, Push, Segment
from potluck.loops.node import COORDINATOR, Latch, Pace, Step, Work, answered
from potluck.loops.parts.transfer import Cuts, Range
from potluck.payload import Payload

if TYPE_CHECKING:
    from potluck.loops.device import DeviceLoop

__all__ = ["Turn"]


class Turn:
    """One invitation and what comes of it."""

    def __init__(self, device: DeviceLoop, invite: Invite) -> None:
        self._device = device
        self._node = device.node
        self.number = invite.turn
        self._round = invite.round
        self._invite = invite
        self._whom = Whom(device.node.name, invite.round, invite.count)
        self._costs = device.costs(self._whom)
        self._pieces: dict[int, tuple[int, int, Payload]] = {}
        self._arrived: dict[int, Latch] = {}
        self._begun: dict[int, float] = {}  # when each segment began to be sent
        self._came: dict[int, float] = {}  # and when it was here
        self.accepted: dict[int, Latch] = {}
        self._ready: dict[int, Latch] = {}  # gradients of push segments, by first layer
        self._session: Session | None = None
        self._updates: dict[int, Push] = {}
        self._last_arrival = 0.0
        self._cuts = Cuts((), ())
        self._size = 0  # of the last mini-batch
        self._shares: dict[int, float] = {}  # of a whole step's cost, by mini-batch, where each chooses its part
        self._learns = device.settings.transfer.learns

    def take(self, segment: Segment) -> None:
        """A segment of the model has arrived."""
        if segment.first in self._arrived and segment.first not in self._pieces:
            self._pieces[segment.first] = (segment.first, segment.last, segment.payload)
            self._begun[segment.first] = segment.begun
            self._came[segment.first] = self._node.now()
            self._arrived[segment.first].open()

    async def take_part(self) -> None:
        try:
            await self._take_part()
        except asyncio.CancelledError:
            self._give_back()
            raise
        finally:
            self._pieces.clear()
            self._updates.clear()
            self._session = None

    def _give_back(self) -> None:
        """Dropped on the way: what was sent counts for nothing, unless the last of it was accepted this very moment."""
        if self.accepted and all(latch.is_open for latch in self.accepted.values()):
            return
        for update in self._updates.values():
            assert self._session is not None
            self._session.retract(update.first, update.last, update.payload)

    async def _take_part(self) -> None:
        device = self._device
        cuts = device.settings.transfer.cuts(self._costs, device.seen, device.supply.size())
        if self._invite.ahead and device.last_push:
            cuts = Cuts(device.last_push, cuts.push)  # layers come back as they went
        self._cuts, device.last_push = cuts, cuts.push
        self._arrived = {first: Latch() for first, _ in cuts.pull}
        self.accepted = {first: Latch() for first, _ in cuts.push}
        if len(cuts.pull) == len(cuts.push) == 1:
            await self._pull(*cuts.pull[0])
            await self._compute(self._whole_steps)
            await self._push(*cuts.push[0])
            await self._settled(cuts.push[0][0])
        else:
            await self._overlapped(cuts)

    async def _overlapped(self, cuts: Cuts) -> None:
        self._ready = {first: Latch() for first, _ in cuts.push}
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pull_all(cuts.pull))
            group.create_task(self._compute(self._layer_steps))
            await self._push_all(cuts.push)

    # --- pull ------------------------------------------------------------------------------------------------------

    async def _pull_all(self, segments: tuple[Range, ...]) -> None:
        """Ask for the segments in order, no more than `window` of them at once."""
        window = len(segments) if self._invite.ahead else self._device.settings.transfer.window
        async with asyncio.TaskGroup() as group:
            for place, (first, last) in enumerate(segments):
                if place >= window:
                    await self._arrived[segments[place - window][0]].wait()
                group.create_task(self._pull(first, last))

    async def _pull(self, first: int, last: int) -> None:
        node, asked = self._node, self._node.now()
        await self._answered(Pull(self.number, first, last), self._arrived[first])
        nbytes, seen = self._pieces[first][2].nbytes, self._device.seen
        waited = self._invite.ahead  # for others: only what came after it began to be sent says anything of the link
        pipelined = self._last_arrival > (self._begun[first] if waited else asked)
        start = max(self._begun[first] if waited else asked, self._last_arrival)
        self._last_arrival = node.now()
        if self._learns:
            trip = 0.0 if pipelined else seen.round_trip / 2 if waited else seen.round_trip
            seen.pulled(nbytes, node.now() - start - trip)
        self._record("pull", start, nbytes, (first, last))

    # --- compute ---------------------------------------------------------------------------------------------------

    async def _compute(self, plan: Callable[[Share], list[Step]]) -> None:
        supply = self._device.supply
        share = supply.at_hand(self._invite) or await supply.gather(self._invite)
        self._session, self._size, steps = self._begin_session(share), share.sizes[-1], plan(share)
        await self._arrived[0].wait()
        start = self._node.now()
        await self._node.compute(Work(steps, lambda pace: self._train(pace, steps)))
        if share.learned is not None:
            share.learned(self._session.losses)
        if len(steps) == 1 and not callable(steps[0].seconds):  # gates on the way would count as slowness
            self._device.seen.computed(steps[0].seconds, self._node.now() - start)
        self._record_work(start, steps, sum(share.sizes))
        self._record_share(share)

    def _begin_session(self, share: Share) -> Session:
        device, count = self._device, self._invite.count
        factor = device.settings.local_schedule.factor(self._round)
        return device.mathematics.session(
            self._whom, self._pieces, share, factor, device.memory, lambda name: self._node.rng(name, count)
        )

    def _train(self, pace: Pace, steps: list[Step]) -> None:
        assert self._session is not None
        if self._ready:
            self._session.train(LayerBeat(pace, self._costs.layers, len(steps)))
        elif self._device.mathematics.chooses:
            self._session.train(StepBeat(pace))
        else:
            self._session.train(PlainBeat())

    def _whole_steps(self, share: Share) -> list[Step]:
        """All in one; where every mini-batch chooses its part of the model, a step for each."""
        costs = self._costs
        if not self._device.mathematics.chooses:
            return [Step(sum(map(costs.step, share.sizes)))]
        return [Step(self._chosen(place, costs.step(size))) for place, size in enumerate(share.sizes)]

    def _chosen(self, batch: int, whole_s: float) -> Callable[[], float]:
        """Choose what the mini-batch trains by what the device can do now; what that costs of a whole step."""

        return lambda: whole_s * self._share_of(batch)

    def _share_of(self, batch: int) -> float:
        """What a mini-batch trains with what the device can do now, as a share of the whole model's cost."""
        assert self._session is not None
        budget = self._device.affordable * self._node.speed()
        share = self._shares[batch] = self._session.choose(batch, budget)
        return share

    def _layer_steps(self, share: Share) -> list[Step]:
        """Layer by layer forward through the first mini-batch and backward through the last; the rest in one."""
        costs, sizes = self._costs, share.sizes
        layers, lasts = range(costs.layers), {last for _, last in self._cuts.pull}
        forward = [
            Step(costs.forward(layer, sizes[0]), gate=self._arrived.get(layer), timed=layer in lasts)
            for layer in layers
        ]
        between = sum(map(costs.step, sizes)) - sum(costs.forward(layer, sizes[0]) for layer in layers)
        between -= sum(costs.backward(layer, sizes[-1]) for layer in layers)
        backward = [
            Step(costs.backward(layer, sizes[-1]), signal=self._ready.get(layer), timed=layer in self._ready)
            for layer in reversed(layers)
        ]
        steps = [*forward, *([Step(between, timed=True)] if len(sizes) > 1 else []), *backward]
        return self._scaled(steps, share) if self._device.mathematics.chooses else steps

    def _scaled(self, steps: list[Step], share: Share) -> list[Step]:
        """With transfers cut, the parts of all mini-batches are chosen as the first begins."""
        whole, first = [step.seconds for step in steps], steps[0]

        def choose() -> float:
            shares = [self._share_of(place) for place in range(len(share.sizes))]
            mean = sum(map(operator.mul, shares, share.sizes)) / sum(share.sizes)
            for step, seconds in zip(steps, whole, strict=True):
                assert not callable(seconds)
                step.seconds = seconds * mean
            assert not callable(first.seconds)
            return first.seconds

        first.seconds = choose
        return steps

    # --- push ------------------------------------------------------------------------------------------------------

    async def _push_all(self, segments: tuple[Range, ...]) -> None:
        """Send each segment once its gradient is there and the one before has left (window 1: is accepted)."""
        moments: list[float] = []
        async with asyncio.TaskGroup() as group:
            for first, _ in segments:
                self._ready[first].then(lambda: moments.append(self._node.now()))
            async for first, last in self._in_order(segments):
                await self._push(first, last)
                settled = group.create_task(self._settled(first))
                if self._device.settings.transfer.window == 1:
                    await settled
        self._learn_speed(segments, moments)

    async def _in_order(self, segments: tuple[Range, ...]) -> AsyncIterator[Range]:
        """As their gradients get ready; with duplex transfers, of those that wait, the nearest to the input first."""
        left = list(segments)
        while left:
            await self._ready[left[0][0]].wait()
            ready = [segment for segment in left if self._ready[segment[0]].is_open]
            chosen = min(ready) if self._device.settings.transfer.ahead else ready[0]
            left.remove(chosen)
            yield chosen

    def _learn_speed(self, segments: tuple[Range, ...], moments: list[float]) -> None:
        """Between the first and the last gradient nothing but computation happened."""
        if len(moments) > 1:
            costs, size = self._costs, self._size
            nominal = sum(
                costs.backward(layer, size) for first, last in segments[1:] for layer in range(first, last + 1)
            )
            self._device.seen.computed(nominal, moments[-1] - moments[0])

    async def _push(self, first: int, last: int) -> None:
        start, message = self._node.now(), self._update(first, last)
        self._updates[first] = message
        await self._node.send(COORDINATOR, message)
        if self._learns:
            self._device.seen.pushed(message.payload.nbytes, self._node.now() - start)
        self._record("push", start, message.payload.nbytes, (first, last))

    async def _settled(self, first: int) -> None:
        """Sent once; wait until it is accepted, and send it again if that takes too long."""
        await self._answered(self._updates[first], self.accepted[first], sent=True)

    def _update(self, first: int, last: int) -> Push:
        session = self._session
        assert session is not None
        payload = session.encode(first, last)
        return Push(payload, turn=self.number, first=first, last=last, samples=session.samples, loss=session.loss)

    # --- both ------------------------------------------------------------------------------------------------------

    async def _answered(self, request: Pull | Push, reply: Latch, sent: bool = False) -> None:
        await answered(self._node, COORDINATOR, request, reply, self._device.settings.retry, sent)

    def _record_work(self, start: float, steps: list[Step], samples: int) -> None:
        """One span; where transfers are cut, one for each segment of the first forward and the last backward pass."""
        if not self._ready:
            self._record("compute", start, samples=samples)
            return
        layers = self._costs.layers
        for first, last in sorted(self._cuts.pull):
            begun = max(start, self._came[first])
            start = self._record("compute", begun, layers=(first, last), end=steps[last].ended, way="forward")
        if len(steps) > 2 * layers:
            start = self._record("compute", start, end=steps[layers].ended)
        for first, last in sorted(self._cuts.push, reverse=True):
            count, end = samples if first == 0 else 0, steps[-1 - first].ended
            start = self._record("compute", start, layers=(first, last), samples=count, end=end, way="backward")

    def _record_share(self, share: Share) -> None:
        """How much was trained, of a whole step's cost on average over the samples; nothing where all always is."""
        part, places = self._device.share(self._whom), range(len(share.sizes))
        if part is None and not self._shares:
            return
        chosen = [self._shares[place] for place in places] if self._shares else [1.0] * len(places)
        shares = chosen if part is None else [part * one for one in chosen]
        mean = sum(map(operator.mul, shares, share.sizes)) / sum(share.sizes)
        fields = {"round": self._round, "least": min(shares), "most": max(shares)}
        self._node.record(Scalar(self._node.name, "share", self._node.now(), mean, fields))

    def _record(
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
