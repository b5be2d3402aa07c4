"""A device's side of the rounds loop: wait for an invitation, take the turn, wait again.

Invite ──▶ pull ─▶ compute ─▶ push ──▶ idle          in segments, the three overlap (see turn.py)
           a newer Invite, a Release or the loss of the coordinator cancels the turn
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from potluck.loops.backends import DeviceBackend, TurnIdentity
from potluck.loops.batch_source import BatchSource
from potluck.loops.device_costs import DeviceCosts
from potluck.loops.device_estimates import DeviceEstimates
from potluck.loops.frozen_exchange import FrozenFetcher
from potluck.loops.messages import Accept, FrozenSegment, Gift, Give, Invite, Lost, Release, Released, Segment, Stop
from potluck.loops.node import COORDINATOR, IDLE_CHECK_S, Node, Step, Work
from potluck.loops.parts.model_transfer import Range
from potluck.loops.settings import Rounds
from potluck.loops.turn import Turn
from potluck.model.pull_deltas import HeldModel

__all__ = ["RoundsDevice", "RoundsDeviceContext"]

_log = logging.getLogger("potluck")


class RoundsDeviceContext(NamedTuple):
    """Everything a device works with besides its node."""

    settings: Rounds
    backend: DeviceBackend
    costs: Callable[[TurnIdentity], DeviceCosts]
    batch_source: BatchSource
    estimates: DeviceEstimates
    carried_state: Any = None  # what the backend carries over from turn to turn
    compute_budget: float = 1.0  # fraction of a whole step that fits into a mini-batch's slot at nominal speed
    # Of the whole model: what a turn trains, or what its mini-batches choose from; None where that is all of it.
    submodel_fraction: Callable[[TurnIdentity], float | None] = lambda identity: None
    frozen: FrozenFetcher | None = None  # fetches the frozen weights that it lacks
    held: HeldModel | None = None  # the version that it holds, where pulls are compressed


class RoundsDevice:
    """One device in one incarnation."""

    def __init__(self, node: Node, context: RoundsDeviceContext) -> None:
        self.node = node
        self.context = context
        self._turns: dict[int, Turn] = {}  # running or just over: one, or two where the next begins on a draft
        self._turn_tasks: dict[int, asyncio.Task[None]] = {}
        self._newest_turn = -1
        self.last_push_segments: tuple[Range, ...] = ()  # how the latest turn's update was cut
        self._idle_check: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    async def main(self) -> None:
        """Take turns until the coordinator says stop."""
        this = asyncio.current_task()
        assert this is not None
        try:
            while await self._handle_next(this):
                pass
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise
        finally:
            self._drop_turns()
            if self._idle_check is not None:
                self._idle_check.cancel()
            if self.context.frozen is not None:
                self.context.frozen.cancel()

    async def _handle_next(self, this: asyncio.Task[Any]) -> bool:
        envelope = await self.node.receive()
        assert envelope is not None
        if envelope.sender != COORDINATOR and not isinstance(envelope.message, Gift):
            return True  # only gifts may come from other devices
        match envelope.message:
            case Invite() as invite:
                self._begin_turn(invite, this)
            case Segment() as segment:
                if (turn := self._turns.get(segment.turn)) is not None:
                    turn.receive_segment(segment, envelope.transfer)
            case FrozenSegment() as frozen_segment:
                if self.context.frozen is not None:
                    self.context.frozen.receive_segment(frozen_segment)
            case Give() as give:
                self.context.batch_source.handle_give(give)
            case Gift() as gift if gift.donor == envelope.sender:
                self.context.batch_source.receive_gift(gift)
            case Accept() as accept:
                if (turn := self._turns.get(accept.turn)) is not None:
                    turn.receive_accept(accept)
            case Release() as release:
                self._release_turn(release)
            case Lost(device=device) if device == COORDINATOR:
                self._drop_turns()
            case Stop():
                return False
        return True

    def _release_turn(self, release: Release) -> None:
        number = release.turn
        if release.refused:
            _log.info("%s: the update of turn %d was refused: %s", self.node.name, number, release.refused)
        self._drop_turns([turn for turn in self._turn_tasks if turn == number or (turn < number and not release.only)])
        if not release.idle:
            self.node.send(COORDINATOR, Released(number))
        elif self._idle_check is None or self._idle_check.done():
            self._idle_check = asyncio.get_running_loop().create_task(self._confirm_idle(number))

    async def _confirm_idle(self, number: int) -> None:
        """Confirm once the processor takes work again; work that hangs holds it although its turn is cancelled."""
        await self.node.compute(Work([Step(IDLE_CHECK_S)]))
        self.node.send(COORDINATOR, Released(number, idle=True))

    def _begin_turn(self, invite: Invite, this: asyncio.Task[Any]) -> None:
        if invite.turn <= self._newest_turn:
            return  # a repeated invitation
        self._drop_turns([turn for turn in self._turn_tasks if not invite.ahead or turn < self._newest_turn])
        self._newest_turn = invite.turn
        self._turns = {number: turn for number, turn in self._turns.items() if number in self._turn_tasks}
        turn = self._turns[invite.turn] = Turn(self, invite)
        self._turn_tasks[invite.turn] = asyncio.get_running_loop().create_task(self._run_turn(turn, this))

    async def _run_turn(self, turn: Turn, this: asyncio.Task[Any]) -> None:
        """Run a turn; an error in it ends the device."""
        try:
            await turn.run()
            self._turn_tasks.pop(turn.number, None)
        except Exception as error:
            self._error = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            this.cancel()

    def _drop_turns(self, numbers: Sequence[int] | None = None) -> None:
        """Cancel these turns, or all."""
        for number in list(self._turn_tasks) if numbers is None else numbers:
            self._turn_tasks.pop(number).cancel()
            self._turns.pop(number, None)
