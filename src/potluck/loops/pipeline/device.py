"""A device's side of the pipeline loop: one mailbox; what it is told starts, feeds and ends the stage it runs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from potluck.loops.messages import Stop
from potluck.loops.node import COORDINATOR, Envelope
from potluck.loops.pipeline.assembly import Assembly
from potluck.loops.pipeline.checks import joined, layers_refusal, replica_refusal
from potluck.loops.pipeline.history import History
from potluck.loops.pipeline.line import Crew
from potluck.loops.pipeline.messages import (
    Activation,
    Assign,
    Begin,
    Close,
    Closed,
    Doing,
    Exam,
    Examine,
    ExamLabels,
    Fetch,
    Finish,
    Gradient,
    Halt,
    Inquire,
    Inventory,
    Kept,
    Labels,
    Missing,
    Piece,
    Ready,
    Refused,
    Replica,
    Resend,
    Secure,
)
from potluck.loops.pipeline.stage import Stage, Workshop

__all__ = ["StageDevice"]

_ORDERS = (Stop, Halt, Assign, Begin, Close, Finish, Secure, Examine, Refused)  # what only the coordinator may say

_log = logging.getLogger("potluck")


class StageDevice:
    """One device in one life."""

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop
        self._node = shop.node
        self._shelf = shop.shelf
        self._term = 0
        self._assembly: Assembly | None = None
        self._stage: Stage | None = None
        self._crew = Crew(self._fail)
        self._giving: dict[tuple[str, int, int], asyncio.Task[None]] = {}
        self._error: BaseException | None = None
        self._main: asyncio.Task[Any] | None = None

    async def main(self) -> None:
        """Serve until told to stop."""
        self._main = asyncio.current_task()
        try:
            while True:
                envelope = await self._node.receive()
                assert envelope is not None
                if isinstance(envelope.message, _ORDERS) and envelope.sender != COORDINATOR:
                    continue
                if isinstance(envelope.message, Stop):
                    return
                self._handle(envelope)
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise
        finally:
            self._drop()

    def _handle(self, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, Halt):
            self._halt(message)
        elif getattr(message, "term", None) != self._term:
            return  # of another term, or of the membership
        elif isinstance(message, Assign):
            self._assign(message)
        elif isinstance(message, Fetch):
            self._give(envelope.sender, message)
        elif isinstance(message, Piece):
            if self._assembly is not None and (reason := self._assembly.take(envelope.sender, message)) is not None:
                self._refuse(envelope.sender, reason)
        elif isinstance(message, Replica):
            self._keep(envelope.sender, message)
        elif isinstance(message, Refused):
            _log.info("%s was refused: %s", self._node.name, message.reason)
            self._drop()
        elif isinstance(message, Secure):
            self._shelf.keep(lambda version, first, last: version >= message.version)
            if self._stage is not None:
                self._stage.secure(message.version)
        elif self._stage is not None:
            self._tell(self._stage, envelope)

    def _tell(self, stage: Stage, envelope: Envelope) -> None:
        """What concerns the stage at work."""
        match envelope.message:
            case Begin(start=start, end=end):
                stage.begin(start, end)
            case Close(end=end):
                closed = stage.close(end)
                if end is None and closed is not None:
                    self._node.send(COORDINATOR, Closed(self._term, closed))
            case Finish():
                stage.finish()
            case Inquire():
                self._node.send(COORDINATOR, stage.doing())
            case Activation() | Labels() | Gradient() as message:
                stage.take(envelope.sender, message)
            case Examine() as examine:
                stage.examine(examine)
            case Exam() | ExamLabels() as exam:
                stage.take_exam(envelope.sender, exam)
            case Resend() as asked:
                stage.resend(envelope.sender, asked)
            case Kept() as kept:
                stage.kept(envelope.sender, kept)

    # --- a new term ------------------------------------------------------------------------------------------------

    def _halt(self, halt: Halt) -> None:
        if halt.term < self._term:
            return
        if halt.term > self._term:
            self._drop()
            self._term = halt.term
            history = History(halt.terms)
            self._shelf.purge(lambda version, made: history.made(version) == made)
        self._node.send(COORDINATOR, Inventory(self._term, self._shelf.listing()))

    def _assign(self, assign: Assign) -> None:
        if self._stage is not None:
            self._node.send(COORDINATOR, Ready(self._term))
        elif self._assembly is None:
            self._assembly = Assembly(self._shop, assign)
            if self._assembly.from_shelf():
                self._crew.start(self._assemble(self._assembly, assign))
            else:
                self._node.send(COORDINATOR, Missing(self._term))
        else:
            self._node.send(COORDINATOR, Doing(self._term))

    async def _assemble(self, assembly: Assembly, assign: Assign) -> None:
        """Fetch what others have, all at once, then take up the work."""
        fetches = [self._crew.start(assembly.fetch(origin)) for origin in assembly.wanting]
        for fetch in fetches:
            await fetch
        replicated = assign.stride or self._shop.settings.replication.central_stride()
        oldest = 0 if replicated else assign.version
        self._shelf.keep(lambda version, first, last: oldest <= version <= assign.version)
        self._stage = Stage(self._shop, assign, assembly.numbers(), self._fail)
        self._assembly = None
        self._node.send(COORDINATOR, Ready(self._term))

    def _drop(self) -> None:
        self._crew.disband()
        if self._stage is not None:
            self._stage.end()
        self._stage = self._assembly = None
        self._giving.clear()
        self._shelf.drop_arriving()

    # --- copies ----------------------------------------------------------------------------------------------------

    def _give(self, receiver: str, fetch: Fetch) -> None:
        """Send some layers to who asks, unless they are on their way to it."""
        if (reason := layers_refusal(fetch.first, fetch.last, self._shop.costs.layers)) is not None:
            self._refuse(receiver, reason)
            return
        key = (receiver, fetch.first, fetch.version)
        giving = self._giving.get(key)
        if giving is not None and not giving.done():
            self._node.send(COORDINATOR, Doing(self._term))
            return
        numbers = self._shelf.find(fetch.version, fetch.first, fetch.last)
        if numbers is None:
            self._node.send(COORDINATOR, Missing(self._term))
            return
        payload = self._shop.mathematics.pack(numbers, fetch.first, fetch.last, fetch.moments)
        piece = Piece(payload, term=self._term, first=fetch.first, last=fetch.last, version=fetch.version)
        self._giving[key] = self._crew.start(self._send(receiver, piece))

    async def _send(self, receiver: str, piece: Piece) -> None:
        await self._node.send(receiver, piece)

    def _keep(self, sender: str, replica: Replica) -> None:
        """Take in a piece of a copy, and tell both who care when it is whole."""
        if (reason := replica_refusal(replica, self._shop.costs.layers)) is not None:
            self._refuse(sender, reason)
            return
        kept = Kept(self._term, replica.first, replica.last, replica.version)
        if not self._shelf.has(replica.version, replica.made, replica.first, replica.last):
            pieces = self._shelf.take(sender, replica)
            if pieces is None:
                return
            payload = joined(self._shop.mathematics, replica, pieces)
            if isinstance(payload, str):
                self._refuse(sender, payload)
                return
            numbers = self._from_step(replica, payload) if replica.step else self._whole(replica, payload)
            if numbers is None:
                self._node.send(sender, Kept(self._term, replica.first, replica.last, replica.version, whole=False))
                return
            self._shelf.put(replica.version, replica.made, replica.first, replica.last, numbers)
        self._node.send(sender, kept)
        self._node.send(COORDINATOR, kept)

    def _whole(self, replica: Replica, payload: Any) -> Any:
        return self._shop.mathematics.join(replica.first, replica.last, [(replica.first, replica.last, payload)])

    def _from_step(self, replica: Replica, payload: Any) -> Any | None:
        before = self._shelf.exactly(replica.version - 1, replica.first, replica.last)
        if before is None:
            return None
        lr = self._shop.settings.lr_schedule.factor(replica.version - 1)
        return self._shop.mathematics.redo(before, payload, lr)

    def _refuse(self, sender: str, reason: str) -> None:
        """What somebody sent cannot be used."""
        self._node.send(COORDINATOR, Refused(self._term, sender, reason))

    def _fail(self, error: BaseException) -> None:
        """An error in any of its tasks is the device's error."""
        if self._error is None and self._main is not None:
            self._error = error
            self._main.cancel()
