"""What a node has on its way in: offers and chunks are checked and put in place on Zenoh's own threads.

Whatever is whole is handed to the event loop, in the order in which it was sent.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable

from potluck.loops.node import Envelope
from potluck.worlds.live import wire
from potluck.worlds.live.chunks import CONFIRMED, Incoming
from potluck.worlds.live.neighbours import Neighbours
from potluck.worlds.live.notes import Decline, Got, Missing, Note
from potluck.worlds.live.shaping import Conditions
from potluck.worlds.live.wire import ASK, WireError

__all__ = ["Inbound"]

_OPEN_TRANSFERS = 64  # that one sender may have at once
_REMEMBERED = 256  # messages of one sender that are known to be whole

_log = logging.getLogger("potluck")


class Inbound:
    """All that one node is sent."""

    def __init__(
        self,
        life: int,
        neighbours: Neighbours,
        conditions: Conditions,
        limit_bytes: int,
        now: Callable[[], float],
        say: Callable[[str, Note, int], None],
        deliver: Callable[[Envelope], None],
    ) -> None:
        self._life = life
        self._neighbours = neighbours
        self._conditions = conditions
        self._limit_bytes = limit_bytes
        self._now = now
        self._say = say
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._in: dict[tuple[str, int], Incoming] = {}
        self._whole: dict[str, deque[int]] = {}
        self._lock = threading.Lock()  # for the two above, which Zenoh's threads fill
        self._coming: dict[str, deque[tuple[float, Envelope]]] = {}  # whole, and on a shaped link not yet here

    # --- on Zenoh's threads ----------------------------------------------------------------------------------------

    def take_bulk(self, sender: str, data: bytes, head: bytes | None) -> None:
        """An offer or a chunk."""
        if self._conditions.is_cut(sender):
            return
        try:
            if head is None:
                self._take_offer(sender, data)
            else:
                self._take_chunk(sender, head, data)
        except WireError as error:
            self._on_loop(self._neighbours.offence, sender, None, str(error))

    def _take_offer(self, sender: str, data: bytes) -> None:
        offer = wire.decode_offer(data, self._limit_bytes)
        if not self._is_from_now(sender, offer.life) or offer.to_life not in (0, self._life):
            return
        with self._lock:
            theirs = [incoming for key, incoming in self._in.items() if key[0] == sender]
            nbytes = sum(incoming.nbytes for incoming in theirs) + wire.nbytes_to_come(offer)
            if len(theirs) >= _OPEN_TRANSFERS or nbytes > 2 * self._limit_bytes:
                self._say(sender, Decline(offer.number, "too much at once"), offer.life)
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
            self._say(sender, Missing(chunk.number, skipped), chunk.life)
        if incoming.is_whole:
            self._complete(sender, chunk.number, incoming)
        if incoming.is_whole or incoming.count % CONFIRMED == 0:
            self._confirm(sender, chunk.number, incoming.count, chunk.life, drained - self._now())

    def _confirm(self, sender: str, number: int, there: int, life: int, wait: float) -> None:
        """Say what is there, once a shaped link would have brought it."""
        self._neighbours.heard(sender, life)  # on a slow link its beats are stuck behind the chunks
        if wait > 0:
            self._on_loop(self._loop.call_later, wait, self._say, sender, Got(number, there), life)
        else:
            self._say(sender, Got(number, there), life)

    def _complete(self, sender: str, number: int, incoming: Incoming) -> None:
        with self._lock:
            del self._in[sender, number]
            self._whole.setdefault(sender, deque(maxlen=_REMEMBERED)).append(number)
        envelope = Envelope(sender, incoming.offer.life, incoming.message())
        self._on_loop(self._expect, envelope, incoming.due + self._conditions.latency(sender))

    def _answer(self, sender: str, number: int) -> None:
        """Tell a sender where its message stands."""
        with self._lock:
            incoming = self._in.get((sender, number))
            whole = number in self._whole.get(sender, ())
            missing = incoming.missing() if incoming is not None else []
        life = self._neighbours.life_of(sender) or 0
        if incoming is None:
            reply: Note = Got(number, 2**32 - 1) if whole else Decline(number, "unknown here")
            self._say(sender, reply, life)
            return
        self._say(sender, Got(number, incoming.count), life)
        self._say(sender, Missing(number, missing), life)

    def _on_loop(self, action: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(action, *args)
        except RuntimeError:  # the loop is closed, and so are we
            _log.debug("something came when all was closed")

    def _is_from_now(self, sender: str, life: int) -> bool:
        if self._neighbours.life_of(sender) == life:
            return True
        self._on_loop(self._neighbours.stranger, sender, life)
        return False

    # --- on the event loop -----------------------------------------------------------------------------------------

    def _expect(self, envelope: Envelope, due: float) -> None:
        """Let a message arrive when a shaped link would have brought it, and never ahead of the one before."""
        waiting = self._coming.setdefault(envelope.sender, deque())
        waiting.append((due, envelope))
        if len(waiting) == 1:
            self._arrive_due(envelope.sender)

    def _arrive_due(self, sender: str) -> None:
        waiting = self._coming.get(sender, deque())
        while waiting and waiting[0][0] <= self._now():
            self.arrive(waiting.popleft()[1])
        if waiting:
            self._loop.call_later(waiting[0][0] - self._now(), self._arrive_due, sender)
        else:
            self._coming.pop(sender, None)

    def arrive(self, envelope: Envelope) -> None:
        """Deliver, unless the sender has died meanwhile or the message gets lost."""
        if self._neighbours.life_of(envelope.sender) != envelope.incarnation:
            return
        if not self._conditions.loses(envelope.sender, envelope.message):
            self._deliver(envelope)

    def abort(self, sender: str, number: int) -> None:
        """The sender has given it up."""
        with self._lock:
            self._in.pop((sender, number), None)

    def forget(self, name: str) -> None:
        """Nothing more is expected from it."""
        self._coming.pop(name, None)
        with self._lock:
            self._whole.pop(name, None)
            for key in [key for key in self._in if key[0] == name]:
                del self._in[key]

    def clear(self) -> None:
        with self._lock:
            self._in.clear()
