"""Carries messages between nodes, both ways; `outbound` and `inbound` do the work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from potluck.loops.messages import Message
from potluck.loops.node import Envelope
from potluck.worlds.live.inbound import Inbound
from potluck.worlds.live.neighbours import Neighbours
from potluck.worlds.live.notes import Abort, Decline, Got, Missing, Note
from potluck.worlds.live.outbound import Outbound, Sending
from potluck.worlds.live.post import Post
from potluck.worlds.live.shaping import Conditions

__all__ = ["Carrier"]


class Carrier:
    """All that one node has on its way."""

    def __init__(
        self,
        post: Post,
        life: int,
        neighbours: Neighbours,
        conditions: Conditions,
        limit_bytes: int,
        now: Callable[[], float],
        deliver: Callable[[Envelope], None],
        before_last: Callable[[], Awaitable[object]],
    ) -> None:
        self._out = Outbound(post, life, neighbours, conditions, now, before_last)
        self._in = Inbound(life, neighbours, conditions, limit_bytes, now, self._out.say, deliver)
        self.take_bulk = self._in.take_bulk
        self.arrive = self._in.arrive

    def send(self, to: str, message: Message) -> Sending | None:
        """Put a message on its way; None if there is nothing to wait for."""
        return self._out.send(to, message)

    def say(self, to: str, note: Message | Note, to_life: int = 0) -> None:
        """Put a small frame on its way at once; from any thread."""
        self._out.say(to, note, to_life)

    def take_note(self, sender: str, note: Note) -> bool:
        """Whether it was about a message on its way; on the event loop."""
        match note:
            case Got(number=number, count=there):
                self._out.confirmed(sender, number, there)
            case Missing(number=number, indices=indices):
                self._out.missing(sender, number, indices)
            case Decline(number=number, reason=reason):
                self._out.declined(sender, number, reason)
            case Abort(number=number):
                self._in.abort(sender, number)
            case _:
                return False
        return True

    def forget(self, name: str) -> None:
        """This life of it is over: nothing more is sent to it or expected from it."""
        self._out.forget(name)
        self._in.forget(name)

    async def close(self) -> None:
        await self._out.close()
        self._in.clear()
