"""What either side of a run is made of: session, post, carrier, heart and node, opened and closed together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec
import zenoh

from potluck.journal import Record
from potluck.loops.messages import Message
from potluck.loops.node import Envelope
from potluck.worlds.live import wire
from potluck.worlds.live.carrier import Carrier
from potluck.worlds.live.clock import RunClock
from potluck.worlds.live.effort import Effort
from potluck.worlds.live.heart import Heart
from potluck.worlds.live.neighbours import Neighbours
from potluck.worlds.live.node import LiveNode
from potluck.worlds.live.notes import Note
from potluck.worlds.live.post import Post
from potluck.worlds.live.session import close_session
from potluck.worlds.live.shaping import Conditions
from potluck.worlds.live.wire import WireError

__all__ = ["Identity", "Station"]

_CLOSING_S = 10.0


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who speaks, in which life and which era."""

    name: str
    life: int
    era: str
    seed: int
    lease: float
    limit_bytes: int


class Station:
    """One node on the network; what is special to a side comes in by `neighbours`, `take_note` and `record`."""

    def __init__(
        self,
        session: zenoh.Session,
        who: Identity,
        clock: RunClock,
        effort: Effort,
        conditions: Conditions,
        neighbours: Neighbours,
        *,
        record: Callable[[Record], None],
        take_note: Callable[[str, int, Note], None],
        beat: Callable[[], Note],
        before_last: Callable[[], Awaitable[object]],
        listening: Callable[[], None] = lambda: None,
    ) -> None:
        self.session = session
        self._who = who
        self._conditions = conditions
        self._neighbours = neighbours
        self._take_note = take_note
        self._loop = asyncio.get_running_loop()
        self.post = Post(session, who.era, who.name)
        self.node = LiveNode(who.name, who.life, who.seed, clock, effort, self._send, record, listening)
        self.carrier = Carrier(
            self.post, who.life, neighbours, conditions, who.limit_bytes, clock.now, self.node.deliver, before_last
        )
        self.heart = Heart(self.post, who.life, who.lease, beat)

    def open(self) -> None:
        """Listen, and let the heart beat."""
        self.post.listen(self._control, self.carrier.take_bulk)
        self.heart.start(self._conditions.is_cut)

    async def close(self) -> None:
        """Leave nothing behind: no thread, no task, no port."""
        self.heart.stop()
        await self.carrier.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_S):
                await self.post.said()
        await asyncio.to_thread(self.post.close)
        await self.node.close()
        await close_session(self.session)

    def _send(self, to: str, message: Message) -> Awaitable[None] | None:
        return self.carrier.send(to, message)

    def _control(self, sender: str, frame: bytes) -> None:
        """On one of Zenoh's threads."""
        if not self._conditions.is_cut(sender):
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so are we
                self._loop.call_soon_threadsafe(self._take, sender, frame)

    def _take(self, sender: str, data: bytes) -> None:
        try:
            frame = wire.decode_frame(data)
        except WireError as error:
            self._neighbours.offence(sender, None, str(error))
            return
        if frame.to_life not in (0, self._who.life):
            return
        if self._neighbours.life_of(sender) != frame.life:
            self._neighbours.stranger(sender, frame.life)
            return
        self._neighbours.heard(sender, frame.life)
        if isinstance(frame.body, Message):
            self.carrier.arrive(Envelope(sender, frame.life, frame.body))
        elif not self.carrier.take_note(sender, frame.body):
            self._take_note(sender, frame.life, frame.body)
