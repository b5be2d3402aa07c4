"""Carries messages between nodes: small ones in a frame, long ones in chunks that are confirmed and sent again.

    send ──▶ channel (one for each receiver, first come first served) ──▶ chunks, no more than a window ahead ──▶ taken
                                                  what is missing goes again until all is there ◀── Got, Missing ──┘

`send` is done when the link has taken the last byte; what got lost is sent again behind its back. Chunks that come in
are checked and put in place on Zenoh's own thread, everything else happens on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import zenoh

from potluck.loops.messages import Bulky, Message
from potluck.loops.node import Envelope
from potluck.worlds.live import wire
from potluck.worlds.live.chunks import WINDOW, Incoming, Outgoing
from potluck.worlds.live.notes import Abort, Decline, Got, Missing, Note
from potluck.worlds.live.post import Post
from potluck.worlds.live.shaping import Conditions
from potluck.worlds.live.tempo import Tempo
from potluck.worlds.live.wire import ASK, WireError

__all__ = ["Carrier", "Neighbours", "Sending"]

_LONGEST_S = 600.0  # how long nothing is heard of it until it is given up
_OPEN_TRANSFERS = 64  # that one sender may have at once
_REMEMBERED = 256  # messages of one sender that are known to be whole

_log = logging.getLogger("potluck")


class Sending(asyncio.Future[None]):
    """Done when the link has taken the last byte; cancelled, the rest is not sent and nothing arrives."""

    give_up: Callable[[], None] | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.done() and self.give_up is not None:
            self.give_up()
        return super().cancel(msg)


class Neighbours:
    """Which life of whom we speak to, and listen to."""

    def life_of(self, name: str) -> int | None:
        """Its present incarnation; None if it is not here."""
        raise NotImplementedError

    def heard(self, name: str, life: int) -> None:
        """Its present life gave a sign of itself; from any thread."""

    def stranger(self, name: str, life: int) -> None:
        """Something came from a life that is not the present one."""

    def offence(self, name: str, life: int | None, reason: str) -> None:
        """What came is none of our messages."""


class _Transfer:
    """A long message under way, with those who wait for it."""

    def __init__(self, to: str, to_life: int, outgoing: Outgoing, asked: float, tempo: Tempo) -> None:
        self.to = to
        self.ready = (
            asked  # since when its next chunk waits for the link; kept exact, so that shaped links do not drift
        )
        self.to_life = to_life
        self.outgoing = outgoing
        self.tempo = tempo
        self.sending = Sending(loop=asyncio.get_running_loop())
        self.stirred = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Carrier:
    """All that one node has on its way, in and out."""

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
        self._post = post
        self._life = life
        self._neighbours = neighbours
        self._conditions = conditions
        self._limit_bytes = limit_bytes
        self._now = now
        self._deliver = deliver
        self._before_last = before_last  # awaited ahead of a message's last chunk
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._out: dict[int, _Transfer] = {}
        self._channels: dict[str, asyncio.Lock] = {}
        self._tempos: dict[str, Tempo] = {}
        self._free_at: dict[str, float] = {}  # when the last message on a channel was through
        self._in: dict[tuple[str, int], Incoming] = {}
        self._whole: dict[str, deque[int]] = {}
        self._lock = threading.Lock()  # for the two above, which Zenoh's threads fill
        self._background: set[asyncio.Task[None]] = set()

    # --- out -------------------------------------------------------------------------------------------------------

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
        outgoing = Outgoing(next(self._numbers), message, chunk_bytes)
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
        if not self._conditions.is_cut(to):
            await self._post.put(to, lambda: self._chunk(out, index, begun, until))

    async def _ask(self, transfer: _Transfer) -> None:
        """Behind the chunks that are on their way, so that whatever is missing then is lost."""
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

    # --- in --------------------------------------------------------------------------------------------------------

    def take_note(self, sender: str, note: Note) -> bool:
        """Whether it was about a transfer; on the event loop."""
        match note:
            case Got(number=number, count=there):
                self._confirmed(sender, number, there)
            case Missing(number=number, indices=indices):
                self._stir(sender, number, lambda out: out.repeat(indices))
            case Decline(number=number, reason=reason):
                self._declined(sender, number, reason)
            case Abort(number=number):
                with self._lock:
                    self._in.pop((sender, number), None)
            case _:
                return False
        return True

    def take_bulk(self, sender: str, data: bytes, head: bytes | None) -> None:
        """An offer or a chunk; on one of Zenoh's threads."""
        if self._conditions.is_cut(sender):
            return
        try:
            if head is None:
                self._take_offer(sender, data)
            else:
                self._take_chunk(sender, head, data)
        except WireError as error:
            self._on_loop(self._neighbours.offence, sender, None, str(error))

    def forget(self, name: str) -> None:
        """This life of it is over: nothing more is sent to it or expected from it."""
        self._tempos.pop(name, None)
        for transfer in [transfer for transfer in self._out.values() if transfer.to == name]:
            if transfer.task is not None:
                transfer.task.cancel()
            _settle(transfer.sending)
        with self._lock:
            self._whole.pop(name, None)
            for key in [key for key in self._in if key[0] == name]:
                del self._in[key]

    async def close(self) -> None:
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        with self._lock:
            self._in.clear()

    def _take_offer(self, sender: str, data: bytes) -> None:
        offer = wire.decode_offer(data, self._limit_bytes)
        if not self._is_from_now(sender, offer.life) or offer.to_life not in (0, self._life):
            return
        with self._lock:
            theirs = [incoming for key, incoming in self._in.items() if key[0] == sender]
            nbytes = sum(incoming.nbytes for incoming in theirs) + wire.nbytes_to_come(offer)
            if len(theirs) >= _OPEN_TRANSFERS or nbytes > 2 * self._limit_bytes:
                self.say(sender, Decline(offer.number, "too much at once"), offer.life)
                return
            incoming = self._in.setdefault((sender, offer.number), Incoming(offer))
        if incoming.is_whole:
            self._complete(sender, offer.number, incoming)

    def _take_chunk(self, sender: str, head: bytes, data: bytes) -> None:
        chunk = wire.decode_chunk(head, data)
        if not self._is_from_now(sender, chunk.life):
            return
        if chunk.place == ASK:
            self._answer(sender, chunk.number)
            return
        with self._lock:
            incoming = self._in.get((sender, chunk.number))
            if incoming is None or incoming.is_whole:
                return  # given up, declined or whole already
            skipped = incoming.put(chunk, data)
            drained = self._conditions.drain(len(data), chunk.begun)
            incoming.due = max(incoming.due, drained, chunk.taken)
        if skipped:
            self.say(sender, Missing(chunk.number, skipped), chunk.life)
        if incoming.is_whole:
            self._complete(sender, chunk.number, incoming)
        if incoming.is_whole or incoming.count % (WINDOW // 4) == 0:
            self._confirm(sender, chunk.number, incoming.count, chunk.life, drained - self._now())

    def _confirm(self, sender: str, number: int, there: int, life: int, wait: float) -> None:
        """Say what is there, once a shaped link would have brought it."""
        self._neighbours.heard(sender, life)  # on a slow link its beats are stuck behind the chunks
        if wait > 0:
            self._on_loop(self._loop.call_later, wait, self.say, sender, Got(number, there), life)
        else:
            self.say(sender, Got(number, there), life)

    def _complete(self, sender: str, number: int, incoming: Incoming) -> None:
        with self._lock:
            del self._in[sender, number]
            self._whole.setdefault(sender, deque(maxlen=_REMEMBERED)).append(number)
        message = incoming.message()
        wait = incoming.due + self._conditions.latency(sender) - self._now()
        envelope = Envelope(sender, incoming.offer.life, message)
        if wait > 0:
            self._on_loop(self._loop.call_later, wait, self.arrive, envelope)
        else:
            self._on_loop(self.arrive, envelope)

    def arrive(self, envelope: Envelope) -> None:
        """Deliver, unless the sender has died meanwhile or the message gets lost."""
        if self._neighbours.life_of(envelope.sender) != envelope.incarnation:
            return
        if not self._conditions.loses(envelope.sender, envelope.message):
            self._deliver(envelope)

    def _is_from_now(self, sender: str, life: int) -> bool:
        if self._neighbours.life_of(sender) == life:
            return True
        self._on_loop(self._neighbours.stranger, sender, life)
        return False

    def _stir(self, sender: str, number: int, change: Callable[[Outgoing], None]) -> None:
        transfer = self._out.get(number)
        if transfer is not None and transfer.to == sender:
            change(transfer.outgoing)
            transfer.stirred.set()

    def _confirmed(self, sender: str, number: int, there: int) -> None:
        transfer = self._out.get(number)
        if transfer is not None and transfer.to == sender:
            before = transfer.outgoing.got
            transfer.outgoing.confirm(there)
            transfer.tempo.confirmed((transfer.outgoing.got - before) * transfer.outgoing.chunk_bytes)
            transfer.stirred.set()

    def _declined(self, sender: str, number: int, reason: str) -> None:
        transfer = self._out.get(number)
        if transfer is not None and transfer.to == sender and transfer.task is not None:
            _log.warning("%s did not take a message of %s: %s", sender, self._post.name, reason)
            transfer.task.cancel()

    def _answer(self, sender: str, number: int) -> None:
        """Tell a sender where its message stands."""
        with self._lock:
            incoming = self._in.get((sender, number))
            whole = number in self._whole.get(sender, ())
            missing = incoming.missing() if incoming is not None else []
        life = self._neighbours.life_of(sender) or 0
        if incoming is None:
            reply: Note = Got(number, 2**32 - 1) if whole else Decline(number, "unknown here")
            self.say(sender, reply, life)
            return
        self.say(sender, Got(number, incoming.count), life)
        self.say(sender, Missing(number, missing), life)

    def _on_loop(self, action: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(action, *args)
        except RuntimeError:  # the loop is closed, and so are we
            _log.debug("%s has closed", self._post.name)


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
