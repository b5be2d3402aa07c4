"""What anyone who leads does, whatever is led: knowing who is here, asking until there is an answer, keeping the books.

One coroutine reads one mailbox, so there are no locks; every wait has an end.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from potluck.loops.chronicle import Chronicle
from potluck.loops.messages import Joined, Lost, Message
from potluck.loops.node import COORDINATOR, Envelope, Node
from potluck.loops.patience import Patience
from potluck.loops.pipeline.archive import Archive
from potluck.loops.pipeline.aside import Aside
from potluck.loops.pipeline.checks import LONGEST
from potluck.loops.pipeline.messages import Assign, Examine, Fetch, Halt, Inventory, Piece, Ready, Refused, Scored
from potluck.loops.pipeline.planner import Planner
from potluck.loops.pipeline.rules import PipelineRules
from potluck.loops.pipeline.settings import Pipeline
from potluck.loops.progress import Books, Ending
from potluck.loops.roll import Roll

__all__ = ["Leader", "Orders"]

_MUTE = 12  # times `retry` without a word from one who was asked again and again, after which it is left out
_OFTEN, _OF_LATE_S = 5, 60.0  # losses within this time, after which a device that returns is left out for a while
_RECALL = 4  # times `retry`, after which it is asked back
_ANSWERS: dict[type[Message], type[Message]] = {Halt: Inventory, Assign: Ready, Fetch: Piece, Examine: Scored}


class Orders(NamedTuple):
    """What a run is led by."""

    settings: Pipeline
    fleet: tuple[str, ...]
    planner: Planner
    archive: Archive
    rules: PipelineRules
    books: Books
    samples: int  # of a batch


class Leader:
    """Knows the devices; what they say and what their coming and going means is for those who build on it."""

    def __init__(self, node: Node, orders: Orders) -> None:
        self._node = node
        self._settings = orders.settings
        self._fleet = orders.fleet
        self.books = orders.books
        self._chronicle = Chronicle(node, orders.books)
        self._term = orders.books.turn
        self._here = Roll()
        self._aside = Aside()  # who is here and was left out
        self._losses: dict[str, deque[float]] = {}  # when each was lost lately
        self._signs: dict[str, float] = {}  # when each was last heard
        self._asked: Mapping[str, Message] = {}  # whom what, lately
        self._answers: dict[str, Message] | None = None  # to the question that is open
        self._refused: dict[str, str] = {}  # who sent what cannot be used, and why: out until the run is over
        self._disturbed = False  # someone is lost, and a new term must begin
        self._begun = False
        self._patience = Patience(orders.settings.patience)

    # --- who is here -----------------------------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        """Take note of everyone whose arrival is in the mailbox already."""
        while (envelope := await self._node.receive(self._node.now())) is not None:
            self._handle(envelope)

    def _candidates(self, among: Collection[str] | None = None) -> list[str]:
        """Who is here, in the fleet's order, one who holds the data first; nobody if none of them does."""
        here = [name for name in (self._here if among is None else among) if name not in self._aside]
        central = next((holder for holder in self._holders() if holder in here), None)
        if central is None:
            return []
        return [central, *(name for name in self._fleet if name in here and name != central)]

    def _holders(self) -> tuple[str, ...]:
        return (self._settings.central or self._fleet[0], *self._settings.sources)

    def _handle(self, envelope: Envelope) -> None:
        message, sender = envelope.message, envelope.sender
        if isinstance(message, Joined):
            self._join(message.device, message.incarnation)
        elif isinstance(message, Lost):
            self._lose(message)
        elif self._here.incarnation(sender) == envelope.incarnation and getattr(message, "term", None) == self._term:
            self._signs[sender] = self._node.now()
            self._patience.stir(sender, self._node.now())
            self._hear(sender, message)

    def _join(self, device: str, incarnation: int) -> None:
        if device in self._refused:
            self._node.send(device, Refused(self._term, device, self._refused[device]))
            return
        self._patience.stir(device, self._node.now())
        self._here.enter(device, incarnation)
        if self._begun:
            self._chronicle.note(device, "joined", incarnation=incarnation)
        if self._flaps(device):
            self._chronicle.note(device, "left out", term=self._term, reason="comes and goes")
            self._aside.put(device, self._node.now(), _RECALL * float(self._settings.retry))
            return
        self._aside.forget(device)
        if self._begun:
            self._has_joined(device)

    def _flaps(self, device: str) -> bool:
        """Whether it was lost so often of late that its return would only disturb; who holds the data is needed."""
        losses = self._losses.get(device)
        if losses is None or len(losses) < _OFTEN or device in self._holders():
            return False
        return self._node.now() - losses[0] < _OF_LATE_S

    def _lose(self, lost: Lost) -> None:
        if not self._here.strike(lost.device, lost.incarnation):
            return
        was_aside = self._aside.take_back(lost.device)
        self._losses.setdefault(lost.device, deque(maxlen=_OFTEN)).append(self._node.now())
        self._chronicle.note(lost.device, "lost", incarnation=lost.incarnation, reason=lost.reason)
        if was_aside:
            return
        if self._answers is not None:
            self._disturbed = True
        self._has_left(lost.device)

    def _leave_out(self, device: str, reason: str, pause: int = _RECALL) -> None:
        """Go on without a device that is connected, as if it were lost, until it answers again."""
        self._chronicle.note(device, "left out", term=self._term, reason=reason)
        self._aside.put(device, self._node.now(), pause * float(self._settings.retry))
        self._has_left(device)
        self._disturbed = True

    def _refuse(self, device: str, reason: str) -> None:
        """What a device sent cannot be used: it is told why, and the run goes on without it."""
        incarnation = self._here.incarnation(device)
        if incarnation is None:
            return
        self._here.strike(device, incarnation)
        self._aside.forget(device)
        self._refused[device] = reason
        self.books.refused += 1
        self._chronicle.note(device, "refused", incarnation=incarnation, reason=reason)
        self._node.send(device, Refused(self._term, device, reason))
        if self._answers is not None:
            self._disturbed = True
        self._has_left(device)

    def _accused(self, sender: str, refused: Refused) -> None:
        """One cannot use what another sends. The other goes; but if nobody else holds the data, or if it is the
        coordinator, the one who cannot does."""
        device, reason = refused.device, refused.reason[:LONGEST]
        holders = {holder for holder in self._holders() if holder in self._here}
        if device == COORDINATOR or (device in self._here and holders == {device}):
            self._refuse(sender, f"it cannot use what {device} sends: {reason}")
        else:
            self._refuse(device, f"{reason} (found by {sender})")

    def _has_joined(self, device: str) -> None:
        raise NotImplementedError

    def _has_left(self, device: str) -> None:
        raise NotImplementedError

    def _hear(self, sender: str, message: Message) -> None:
        """Take in what a device says in this term."""
        raise NotImplementedError

    # --- asking ----------------------------------------------------------------------------------------------------

    async def _ask(self, requests: Mapping[str, Message], most_s: float = math.inf) -> dict[str, Message]:
        """Ask devices until all have answered, or for at most so long; the loss of one of them disturbs.

        Who is at it says so when it is asked again. One of several that says nothing at all is left out.
        """
        answers: dict[str, Message] = {}
        self._asked, self._answers = requests, answers
        began = self._node.now()
        pause, again_at, ends_at = float(self._settings.retry), -math.inf, began + most_s
        while not self._disturbed and any(device not in answers for device in requests):
            now = self._node.now()
            if now >= self._patience.ends_at:
                self._disturbed = True
            elif now >= ends_at:
                break
            elif now >= again_at:
                self._leave_out_mute(requests, answers, began)
                for device, request in requests.items():
                    if device not in answers:
                        self._node.send(device, request)
                again_at, pause = now + pause, min(2 * pause, 4 * float(self._settings.retry))
            else:
                envelope = await self._node.receive(min(again_at, ends_at, self._patience.ends_at))
                if envelope is not None:
                    self._handle(envelope)
        self._answers = None
        return answers

    def _leave_out_mute(self, asked: Collection[str], answers: Collection[str], began: float) -> None:
        """Not, where all are mute: then it is our own link."""
        longest, now = _MUTE * float(self._settings.retry), self._node.now()
        waiting = [device for device in asked if device not in answers]
        mute = [device for device in waiting if now - max(began, self._signs.get(device, began)) >= longest]
        for device in mute if len(mute) < len(asked) else ():
            self._leave_out(device, "does not answer")

    def _answer(self, sender: str, message: Message) -> None:
        asked = self._asked.get(sender)
        if self._answers is not None and asked is not None and isinstance(message, _ANSWERS[type(asked)]):
            self._answers[sender] = message

    def _gave_up(self) -> Ending | None:
        return Ending("failed", self._shortfall()) if self._node.now() >= self._patience.ends_at else None

    # --- words -----------------------------------------------------------------------------------------------------

    def _unfit(self) -> Ending | None:
        """The run is over where everybody who holds the data was refused."""
        holders = dict.fromkeys(self._holders())
        if any(name not in self._refused for name in holders):
            return None
        return Ending(
            "failed", "; ".join(f"{name} holds the data and was refused: {self._refused[name]}" for name in holders)
        )

    def _shortfall(self) -> str:
        """Why the run cannot go on, in one sentence."""
        waited = f"nothing moved for {self._settings.patience}"
        if not self._candidates():
            gone = " or ".join(dict.fromkeys(self._holders()))
            return f"{waited}: {gone} holds the data and is gone; the run can be resumed from batch {self.books.round}"
        missing = [name for name in self._candidates() if self._answers is not None and name not in self._answers]
        whom = f"still waiting for {', '.join(missing[:5])}" if missing else f"at batch {self.books.round}"
        return f"{waited}: {whom}"
