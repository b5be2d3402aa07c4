"""A device's side of the rounds loop: wait for an invitation, take part, wait again.

Invite ──▶ pull ─▶ compute ─▶ push ──▶ idle          in segments: the three overlap as the transfer plan says
           a newer Invite, a Release or the loss of the coordinator drop what is under way
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt

from potluck.journal import Span
from potluck.loops.costs import Costs
from potluck.loops.mathematics import DeviceMathematics, Share
from potluck.loops.messages import Accept, Invite, Lost, Pull, Push, Release, Released, Segment, Stop
from potluck.loops.node import COORDINATOR, Latch, Node, Step, Work, answered
from potluck.loops.settings import Rounds
from potluck.payload import Payload

__all__ = ["DeviceLoop"]

Indices = npt.NDArray[np.int64]


class Turn:
    """One invitation and what has come in for it."""

    def __init__(self, invite: Invite) -> None:
        self.number = invite.turn
        self.round = invite.round
        self.count = invite.count
        self.pieces: dict[int, tuple[int, int, Payload]] = {}
        self.arrived: dict[int, Latch] = {}
        self.accepted: dict[int, Latch] = {}


class DeviceLoop:
    """One device in one life."""

    def __init__(
        self, node: Node, settings: Rounds, mathematics: DeviceMathematics, costs: Costs, shard: Indices
    ) -> None:
        self._node = node
        self._settings = settings
        self._mathematics = mathematics
        self._costs = costs
        self._shard = shard
        self._turn: Turn | None = None
        self._part: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    async def main(self) -> None:
        """Serve until told to stop."""
        this = asyncio.current_task()
        assert this is not None
        try:
            while await self._serve(this):
                pass
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise
        finally:
            self._drop()

    async def _serve(self, this: asyncio.Task[Any]) -> bool:
        envelope = await self._node.receive()
        assert envelope is not None
        match envelope.message:
            case Invite() as invite:
                self._begin(invite, this)
            case Segment(turn=turn, first=first) as segment:
                if self._turn is not None and turn == self._turn.number and first not in self._turn.pieces:
                    self._turn.pieces[first] = (first, segment.last, segment.payload)
                    self._turn.arrived[first].open()
            case Accept(turn=turn, first=first):
                if self._turn is not None and turn == self._turn.number and first in self._turn.accepted:
                    self._turn.accepted[first].open()
            case Release(turn=turn):
                if self._turn is not None and turn >= self._turn.number:
                    self._drop()
                self._node.send(COORDINATOR, Released(turn))
            case Lost():
                self._drop()
            case Stop():
                return False
        return True

    def _begin(self, invite: Invite, this: asyncio.Task[Any]) -> None:
        if self._turn is not None and invite.turn <= self._turn.number:
            return  # said twice
        self._drop()
        self._turn = Turn(invite)
        self._part = asyncio.get_running_loop().create_task(self._take_part_or_say_why_not(self._turn, this))

    async def _take_part_or_say_why_not(self, turn: Turn, this: asyncio.Task[Any]) -> None:
        """An error in a turn is the device's error."""
        try:
            await self._take_part(turn)
        except Exception as error:
            self._error = error
            this.cancel()

    def _drop(self) -> None:
        if self._part is not None:
            self._part.cancel()
        self._part = None

    # --- one turn --------------------------------------------------------------------------------------------------

    async def _take_part(self, turn: Turn) -> None:
        settings, costs, held = self._settings, self._costs, len(self._shard)
        size = settings.batching.size_for(held)
        share = self._share(turn, settings.local.passes(held, size))
        pull, push = settings.transfer.pull(costs, size), settings.transfer.push(costs, size)
        turn.arrived = {first: Latch() for first, _ in pull}
        turn.accepted = {first: Latch() for first, _ in push}
        if len(pull) == len(push) == 1:
            await self._one_after_the_other(turn, share, pull[0], push[0])
        else:
            raise NotImplementedError

    def _share(self, turn: Turn, passes: int | None) -> Share:
        batching, shard, rng = self._settings.batching, self._shard, self._node.rng
        return Share(
            batching.sizes(len(shard), passes),
            lambda: batching.choose(shard, turn.count, passes, rng),
            lambda: rng("train", turn.count),
        )

    async def _one_after_the_other(
        self, turn: Turn, share: Share, pull: tuple[int, int], push: tuple[int, int]
    ) -> None:
        node, start = self._node, self._node.now()
        await self._ask(Pull(turn.number, *pull), turn.arrived[pull[0]])
        self._record("pull", start, turn, turn.pieces[pull[0]][2].nbytes)
        start = node.now()
        seconds = sum(map(self._costs.step, share.sizes))
        trained = await node.compute(Work([Step(seconds)], lambda pace: self._train(turn, share)))
        self._record("compute", start, turn)
        start = node.now()
        message = self._update(turn, trained, push)
        await node.send(COORDINATOR, message)
        self._record("push", start, turn, message.payload.nbytes)
        await self._ask(message, turn.accepted[push[0]], sent=True)

    def _train(self, turn: Turn, share: Share) -> Any:
        factor = self._settings.local_schedule.factor(turn.round)
        return self._mathematics.train(list(turn.pieces.values()), share, factor)

    def _update(self, turn: Turn, trained: Any, layers: tuple[int, int]) -> Push:
        payload = self._mathematics.encode(trained, *layers)
        first, last = layers
        return Push(payload, turn=turn.number, first=first, last=last, samples=trained.samples, loss=trained.loss)

    async def _ask(self, request: Pull | Push, reply: Latch, sent: bool = False) -> None:
        await answered(self._node, COORDINATOR, request, reply, self._settings.retry, sent)

    def _record(self, name: str, start: float, turn: Turn, nbytes: int = 0) -> None:
        fields: dict[str, Any] = {"round": turn.round}
        if nbytes:
            fields["bytes"] = nbytes
        self._node.record(Span(self._node.name, name, start, self._node.now(), fields))
