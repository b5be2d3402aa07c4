"""A device's side of the rounds loop: wait for an invitation, take part, wait again.

Invite ──▶ pull ─▶ compute ─▶ push ──▶ idle          in segments, the three overlap (see turn.py)
           a newer Invite, a Release or the loss of the coordinator drop what is under way
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from potluck.loops.costs import Costs
from potluck.loops.estimates import Estimates
from potluck.loops.mathematics import DeviceMathematics, Whom
from potluck.loops.messages import Accept, Gift, Invite, Lost, Release, Released, Segment, Stop
from potluck.loops.node import COORDINATOR, Node
from potluck.loops.parts.transfer import Range
from potluck.loops.settings import Rounds
from potluck.loops.supply import Supply
from potluck.loops.turn import Turn

__all__ = ["DeviceLoop"]

_log = logging.getLogger("potluck")


class DeviceLoop:
    """One device in one life."""

    def __init__(
        self,
        node: Node,
        settings: Rounds,
        mathematics: DeviceMathematics,
        costs: Callable[[Whom], Costs],
        supply: Supply,
        seen: Estimates,
        memory: Any = None,
        affordable: float = 1.0,
        share: Callable[[Whom], float | None] = lambda whom: None,
    ) -> None:
        self.node = node
        self.settings = settings
        self.mathematics = mathematics
        self.costs = costs
        self.supply = supply
        self.seen = seen
        self.memory = memory  # of the mathematics, from turn to turn
        self.affordable = affordable  # of a whole step in a mini-batch's slot of time, at nominal speed
        self.share = share  # of the whole model, that a turn trains or its mini-batches choose from; None is all
        self._turns: dict[int, Turn] = {}  # under way, or just over: one, or two where the next begins ahead
        self._parts: dict[int, asyncio.Task[None]] = {}
        self._newest = -1
        self.last_push: tuple[Range, ...] = ()  # how the update of the latest turn was cut
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
        envelope = await self.node.receive()
        assert envelope is not None
        if envelope.sender != COORDINATOR and not isinstance(envelope.message, Gift):
            return True  # only the coordinator leads
        match envelope.message:
            case Invite() as invite:
                self._begin(invite, this)
            case Segment() as segment:
                if (turn := self._turns.get(segment.turn)) is not None:
                    turn.take(segment)
            case Gift() as gift if gift.donor == envelope.sender:
                self.supply.receive(gift)
            case Accept() as accept:
                if (turn := self._turns.get(accept.turn)) is not None and accept.first in turn.accepted:
                    turn.accepted[accept.first].open()
            case Release(turn=number, only=only, refused=refused):
                if refused:
                    _log.info("%s: the update of turn %d was refused: %s", self.node.name, number, refused)
                self._drop([turn for turn in self._parts if turn == number or (turn < number and not only)])
                self.node.send(COORDINATOR, Released(number))
            case Lost(device=device) if device == COORDINATOR:
                self._drop()
            case Stop():
                return False
        return True

    def _begin(self, invite: Invite, this: asyncio.Task[Any]) -> None:
        if invite.turn <= self._newest:
            return  # said twice
        self._drop([turn for turn in self._parts if not invite.ahead or turn < self._newest])
        self._newest = invite.turn
        self._turns = {number: turn for number, turn in self._turns.items() if number in self._parts}
        turn = self._turns[invite.turn] = Turn(self, invite)
        self._parts[invite.turn] = asyncio.get_running_loop().create_task(self._take_part(turn, this))

    async def _take_part(self, turn: Turn, this: asyncio.Task[Any]) -> None:
        """An error in a turn is the device's error."""
        try:
            await turn.take_part()
            self._parts.pop(turn.number, None)
        except Exception as error:
            self._error = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            this.cancel()

    def _drop(self, numbers: Sequence[int] | None = None) -> None:
        """Give up these turns, or all."""
        for number in list(self._parts) if numbers is None else numbers:
            self._parts.pop(number).cancel()
            self._turns.pop(number, None)
