"""The coordinator's part in duplex transfers: the next round's turns begin while this round's updates come in."""

from __future__ import annotations

import asyncio
import heapq
import math
from typing import TYPE_CHECKING, Any

from potluck.loops.ahead import Ahead
from potluck.loops.messages import Pull, Release
from potluck.loops.progress import Turn

if TYPE_CHECKING:
    from potluck.loops.rounds import Coordinator

__all__ = ["Forerun"]


class Forerun:
    """What is under way for the next round; nothing, unless transfers are duplex."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.ahead: Ahead | None = None
        self.turns: dict[str, Turn] = {}  # of the next round
        self._waiting: dict[str, list[tuple[int, int, Turn, Pull, Any]]] = {}  # segments, by device
        self._offered: dict[tuple[int, int], float] = {}  # (turn, first layer) → until when it is not sent again
        self._busy: set[str] = set()  # devices to which a segment is on its way
        self._kept: list[Turn] = []  # whole updates of this round, in order, in case it has to be merged after all

    def open(self, turns: list[Turn], layers: int) -> None:
        """A round has begun; nothing runs ahead of one after which the run shall come to rest."""
        self.ahead = Ahead(self._coordinator.mathematics.draft(), turns, layers)

    def keep(self, turn: Turn) -> bool:
        """Whether a whole update need not be merged now, since its layers are merged one by one."""
        if self.ahead is None:
            return False
        self._kept.append(turn)
        return True

    def pushed(self) -> None:
        """More layers have come in: merge what everyone has sent, and pass it on."""
        ahead, coordinator = self.ahead, self._coordinator
        if ahead is None:
            return
        for first, last in ahead.ready():
            ahead.step(first, last, coordinator.step_factor(ahead.samples, ahead.devices))
            if not self.turns:
                self._invite(ahead)
        for device, pull in ahead.unpark():
            self._offer(self.turns[device], pull, ahead.draft.state)

    def _offer(self, turn: Turn, pull: Pull, state: Any) -> None:
        """Send a segment, or let it wait for the one on its way: of those that wait, the nearest to the input goes
        first, since the next forward pass needs it first. Asked again while it waits, or just after it left, means
        nothing: requests are repeated until the answer is there."""
        key, now = (turn.number, pull.first), self._coordinator.node.now()
        if now < self._offered.get(key, 0.0):
            return
        self._offered[key] = math.inf
        heapq.heappush(self._waiting.setdefault(turn.device, []), (pull.first, turn.number, turn, pull, state))
        self._pump(turn.device)

    def _pump(self, device: str) -> None:
        waiting = self._waiting.get(device)
        if not waiting or device in self._busy:
            return
        _, _, turn, pull, state = heapq.heappop(waiting)
        sending = self._coordinator.send_segment(turn, pull, state)
        key = (turn.number, pull.first)
        if isinstance(sending, asyncio.Future) and not sending.done():
            self._busy.add(device)
            sending.add_done_callback(lambda _: self._sent(device, key))
        else:
            self._sent(device, key)

    def _sent(self, device: str, key: tuple[int, int]) -> None:
        self._offered[key] = self._coordinator.node.now() + self._coordinator.retry_s
        self._busy.discard(device)
        self._pump(device)

    def _invite(self, ahead: Ahead) -> None:
        for device in ahead.names():
            turn = self._coordinator.make_turn(device, ahead=True)
            if turn is not None:
                self.turns[device] = turn

    def answer(self, turn: Turn, pull: Pull) -> None:
        """A request of a turn that began ahead."""
        if turn is not self.turns.get(turn.device):
            self._offer(turn, pull, turn.state)  # its round has come
        elif self.ahead is not None and self.ahead.has(pull):
            self._offer(turn, pull, self.ahead.draft.state)
        elif self.ahead is not None:
            self.ahead.park(turn.device, pull)

    def lose(self, device: str, unfinished: bool) -> None:
        """A device is gone: its own next turn, and all that runs ahead if its update was not whole."""
        self._waiting.pop(device, None)
        turn = self.turns.pop(device, None)
        if turn is not None:
            turn.cancel()
        if self.ahead is not None:
            self.ahead.forget(device)
            if unfinished:
                self.break_off()

    def break_off(self) -> None:
        """Take the invitations back; the round will be merged as it always is."""
        for turn in self.turns.values():
            turn.cancel()
            self._coordinator.node.send(turn.device, Release(turn.number, only=True))
        self.ahead = None
        self.turns.clear()
        self._waiting.clear()

    def close(self) -> bool:
        """At the commit: whether the next version is made already."""
        ahead, kept = self.ahead, self._kept
        self.ahead, self._kept = None, []
        mathematics = self._coordinator.mathematics
        if ahead is not None and ahead.whole:
            mathematics.adopt(ahead.draft)
            return True
        for turn in kept:
            mathematics.add(turn.pieces, turn.part, turn.samples, 0)
        return False

    def take_over(self) -> dict[str, Turn]:
        """The next round is this round now."""
        turns, self.turns = self.turns, {}
        current = {turn.number for turn in turns.values()}
        self._offered = {key: until for key, until in self._offered.items() if key[0] in current}
        for turn in turns.values():
            turn.state = self._coordinator.mathematics.state
            turn.version = self._coordinator.books.version
        return turns
