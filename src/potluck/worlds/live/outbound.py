"""What a node has on its way out: small messages in a frame, long ones in chunks that are confirmed or sent again.

    send ──▶ channel (one for each receiver, first come first served) ──▶ chunks, no more than a window ahead ──▶ taken
                                                  what is missing goes again until all is there ◀── Got, Missing ──┘

`send` is done when the link has taken the last byte; what got lost is sent again behind its back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any

import zenoh

from potluck.loops.messages import Bulky, Message
from potluck.worlds.live import wire
from potluck.worlds.live.chunks import Outgoing
from potluck.worlds.live.neighbours import Neighbours
from potluck.worlds.live.notes import Abort, Note
from potluck.worlds.live.post import Post
from potluck.worlds.live.shaping import Conditions
from potluck.worlds.live.tempo import Tempo
from potluck.worlds.live.wire import ASK

__all__ = ["Outbound", "Sending"]

_AT_ONCE = 4  # chunks that a thread puts on an unshaped link in one go
_LONGEST_S = 600.0  # how long nothing is heard of a message until it is given up

_log = logging.getLogger("potluck")


class Sending(asyncio.Future[None]):
    """Done when the link has taken the last byte; cancelled, the rest is not sent and nothing arrives."""

    give_up: Callable[[], None] | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.done() and self.give_up is not None:
            self.give_up()
        return super().cancel(msg)


class _Transfer:
    """A long message under way, with those who wait for it."""

    def __init__(self, to: str, to_life: int, outgoing: Outgoing, asked: float, tempo: Tempo) -> None:
        self.to = to
        self.ready = asked  # since when its next chunk waits; kept exact, so that shaped links do not drift
        self.to_life = to_life
        self.outgoing = outgoing
        self.tempo = tempo
        self.sending = Sending(loop=asyncio.get_running_loop())
        self.stirred = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Outbound:
    """All that one node sends; on the event loop."""

    def __init__(
        self,
        post: Post,
        life: int,
        neighbours: Neighbours,
        conditions: Conditions,
        now: Callable[[], float],
        before_last: Callable[[], Awaitable[object]],
    ) -> None:
        self._post = post
        self._life = life
        self._neighbours = neighbours
        self._conditions = conditions
        self._now = now
        self._before_last = before_last  # awaited ahead of a message's last chunk
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._out: dict[int, _Transfer] = {}
        self._channels: dict[str, asyncio.Lock] = {}
        self._tempos: dict[str, Tempo] = {}
        self._free_at: dict[str, float] = {}  # when the last message on a channel was through
        self._background: set[asyncio.Task[None]] = set()

    def send(self, to: str, message: Message) -> Sending | None:
        """Put a message on its way; None if there is nothing to wait for."""
        life = self._neighbours.life_of(to)
        if life is None or self._conditions.is_cut(to):
            return None
        if not isinstance(message, Bulky):
            self.say(to, message, life, self._conditions.latency(to))
            return None
        tempo = self._tempos.setdefault(to, Tempo())
        chunk_bytes = min(tempo.chunk_bytes(), self._conditions.chunk_bytes(to))
        outgoing = Outgoing(next(self._numbers), message, chunk_bytes, tempo.window(chunk_bytes))
        transfer = _Transfer(to, life, outgoing, self._now(), tempo)
        self._out[outgoing.number] = transfer
        transfer.sending.give_up = lambda: self._give_up(transfer)
        transfer.task = self._loop.create_task(self._carry(transfer))
        self._background.add(transfer.task)
        transfer.task.add_done_callback(self._background.discard)
        return transfer.sending

    def say(self, to: str, body: Message | Note, to_life: int = 0, delay: float = 0.0) -> None:
        """Put a small frame on its way; from any thread where there is no delay."""
        frame = wire.encode_frame(self._life, to_life, body)
        if delay > 0:
            self._loop.call_later(delay, self._post.say, to, frame)
        elif not self._conditions.is_cut(to):
            self._post.say(to, frame)

    async def _carry(self, transfer: _Transfer) -> None:
        try:
            async with self._channels.setdefault(transfer.to, asyncio.Lock()):
                transfer.ready = max(transfer.ready, self._free_at.get(transfer.to, 0.0))
                transfer.ready += self._conditions.overhead(transfer.to)
                transfer.tempo.begin()
                await self._offer(transfer)
                await self._push(transfer, lambda: transfer.outgoing.is_taken)
                self._free_at[transfer.to] = transfer.ready
            _settle(transfer.sending)
            await self._push(transfer, lambda: transfer.outgoing.is_there)
        except zenoh.ZError as error:
            _log.debug("%s cannot send to %s: %s", self._post.name, transfer.to, error)
        finally:
            _settle(transfer.sending)
            self._out.pop(transfer.outgoing.number, None)

    async def _offer(self, transfer: _Transfer) -> None:
        out = transfer.outgoing
        offer = wire.encode_offer(self._life, transfer.to_life, out.number, out.message, out.arrays, out.chunk_bytes)
        if out.layout.chunks == 0:
            await self._before_last()
        if not self._conditions.is_cut(transfer.to):
            await self._post.put(transfer.to, lambda: (offer, None))

    async def _push(self, transfer: _Transfer, enough: Callable[[], bool]) -> None:
        """Send chunk after chunk; where the window is full wait for word, and ask for it."""
        silent = 0.0
        while not enough():
            index = transfer.outgoing.due()
            if index is not None:
                await self._put(transfer, index)
                silent = 0.0
            elif not await _stirred(transfer.stirred, pause := transfer.tempo.patience(silent)):
                silent += pause
                if silent > _LONGEST_S:
                    _log.warning(
                        "%s gave up a message to %s: not a word for %g s", self._post.name, transfer.to, silent
                    )
                    return
                await self._ask(transfer)
            else:
                silent = 0.0
                transfer.ready = max(transfer.ready, self._now())

    async def _put(self, transfer: _Transfer, index: int) -> None:
        out, to = transfer.outgoing, transfer.to
        taken = self._conditions.take(to, out.layout.size(index), transfer.ready)
        begun, until = taken if taken is not None else (0.0, 0.0)
        if taken is not None:
            transfer.ready = until
            await asyncio.sleep(max(0.0, until - self._now()))
        if index == out.layout.chunks - 1:
            await self._before_last()
        more = out.more(_AT_ONCE - 1) if taken is None else []
        if not self._conditions.is_cut(to):
            chunks = [partial(self._chunk, out, place, begun, until) for place in (index, *more)]
            await self._post.put(to, *chunks)

    async def _ask(self, transfer: _Transfer) -> None:
        """Behind the chunks that are on their way, so that whatever is missing then is lost."""
        transfer.outgoing.asked()
        head = wire.encode_chunk(self._life, transfer.outgoing.number, ASK, b"")
        if not self._conditions.is_cut(transfer.to):
            await self._post.put(transfer.to, lambda: (b"", head))

    def _chunk(self, out: Outgoing, index: int, begun: float, until: float) -> tuple[bytes, bytes]:
        data = out.read(index)
        return data, wire.encode_chunk(self._life, out.number, index, data, begun, until)

    def _give_up(self, transfer: _Transfer) -> None:
        if transfer.task is not None:
            transfer.task.cancel()
        self.say(transfer.to, Abort(transfer.outgoing.number), transfer.to_life)

    # --- what the receiver says ------------------------------------------------------------------------------------

    def confirmed(self, sender: str, number: int, there: int) -> None:
        """So many chunks are there."""
        transfer = self._of(sender, number)
        if transfer is not None:
            before = transfer.outgoing.got
            transfer.outgoing.confirm(there)
            transfer.tempo.confirmed((transfer.outgoing.got - before) * transfer.outgoing.chunk_bytes)
            transfer.stirred.set()

    def missing(self, sender: str, number: int, indices: list[int]) -> None:
        """These did not come."""
        transfer = self._of(sender, number)
        if transfer is not None:
            transfer.outgoing.repeat(indices)
            transfer.stirred.set()

    def declined(self, sender: str, number: int, reason: str) -> None:
        _log.warning("%s did not take a message of %s: %s", sender, self._post.name, reason)
        transfer = self._of(sender, number)
        if transfer is not None and transfer.task is not None:
            transfer.task.cancel()

    def forget(self, name: str) -> None:
        """Nothing more is sent to it."""
        self._tempos.pop(name, None)
        for transfer in [transfer for transfer in self._out.values() if transfer.to == name]:
            if transfer.task is not None:
                transfer.task.cancel()
            _settle(transfer.sending)

    async def close(self) -> None:
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _of(self, sender: str, number: int) -> _Transfer | None:
        transfer = self._out.get(number)
        return transfer if transfer is not None and transfer.to == sender else None


async def _stirred(event: asyncio.Event, seconds: float) -> bool:
    """Whether something was heard in time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True


def _settle(sending: Sending) -> None:
    sending.give_up = None
    if not sending.done():
        sending.set_result(None)
