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
from potluck.worlds.live import wire_format
from potluck.worlds.live.chunked_transfer import CONFIRMED, Reassembly
from potluck.worlds.live.control_messages import ChunksMissing, ChunksReceived, ControlMessage, TransferDeclined
from potluck.worlds.live.link_shaping import LinkConditions
from potluck.worlds.live.peer_directory import PeerDirectory
from potluck.worlds.live.wire_format import ASK, WireError

__all__ = ["MessageReceiver"]

_OPEN_TRANSFERS = 64  # that one sender may have at once
_REMEMBERED = 256  # messages of one sender that are known to be whole

_log = logging.getLogger("potluck")


class MessageReceiver:
    """All that one node is sent."""

    def __init__(
        self,
        life: int,
        neighbours: PeerDirectory,
        conditions: LinkConditions,
        limit_bytes: int,
        now: Callable[[], float],
        say: Callable[[str, ControlMessage, int], None],
        deliver: Callable[[Envelope], None],
    ) -> None:
        self._incarnation = life
        self._peers = neighbours
        self._conditions = conditions
        self._limit_bytes = limit_bytes
        self._now = now
        self._send_control = say
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._reassemblies: dict[tuple[str, int], Reassembly] = {}
        self._completed: dict[str, deque[int]] = {}
        self._lock = threading.Lock()  # for the two above, which Zenoh's threads fill
        self._delayed: dict[str, deque[tuple[float, Envelope]]] = {}  # whole, and on a shaped link not yet here

    # --- on Zenoh's threads ----------------------------------------------------------------------------------------

    def handle_bulk(self, sender: str, data: bytes, head: bytes | None) -> None:
        """An offer or a chunk."""
        if self._conditions.is_cut(sender):
            return
        try:
            if head is None:
                self._handle_offer(sender, data)
            else:
                self._handle_chunk(sender, head, data)
        except WireError as error:
            self._call_on_loop(self._peers.on_protocol_violation, sender, None, str(error))

    def _handle_offer(self, sender: str, data: bytes) -> None:
        offer = wire_format.decode_offer(data, self._limit_bytes)
        if not self._is_current_incarnation(sender, offer.life) or offer.to_life not in (0, self._incarnation):
            return
        with self._lock:
            theirs = [incoming for key, incoming in self._reassemblies.items() if key[0] == sender]
            nbytes = sum(incoming.nbytes for incoming in theirs) + wire_format.announced_bytes(offer)
            if len(theirs) >= _OPEN_TRANSFERS or nbytes > 2 * self._limit_bytes:
                self._send_control(sender, TransferDeclined(offer.number, "too much at once"), offer.life)
                return
            incoming = self._reassemblies.setdefault((sender, offer.number), Reassembly(offer))
        if incoming.is_complete:
            self._finish_message(sender, offer.number, incoming)

    def _handle_chunk(self, sender: str, head: bytes, data: bytes) -> None:
        chunk = wire_format.decode_chunk(head, data)
        if not self._is_current_incarnation(sender, chunk.incarnation):
            return
        if chunk.chunk_index == ASK:
            self._send_status(sender, chunk.number)
            return
        with self._lock:
            incoming = self._reassemblies.get((sender, chunk.number))
            if incoming is None or incoming.is_complete:
                return  # given up, declined or whole already
            skipped = incoming.add_chunk(chunk, data)
            drained = self._conditions.schedule_receive(len(data), chunk.started_at)
            incoming.due_time = max(incoming.due_time, drained, chunk.finished_at)
        if skipped:
            self._send_control(sender, ChunksMissing(chunk.number, skipped), chunk.incarnation)
        if incoming.is_complete:
            self._finish_message(sender, chunk.number, incoming)
        if incoming.is_complete or incoming.count % CONFIRMED == 0:
            self._send_confirmation(sender, chunk.number, incoming.count, chunk.incarnation, drained - self._now())

    def _send_confirmation(self, sender: str, number: int, there: int, life: int, wait: float) -> None:
        """Say what is there, once a shaped link would have brought it."""
        self._peers.record_contact(sender, life)  # on a slow link its beats are stuck behind the chunks
        if wait > 0:
            self._call_on_loop(
                self._loop.call_later, wait, self._send_control, sender, ChunksReceived(number, there), life
            )
        else:
            self._send_control(sender, ChunksReceived(number, there), life)

    def _finish_message(self, sender: str, number: int, incoming: Reassembly) -> None:
        with self._lock:
            del self._reassemblies[sender, number]
            self._completed.setdefault(sender, deque(maxlen=_REMEMBERED)).append(number)
        envelope = Envelope(sender, incoming.offer.life, incoming.assembled_message())
        self._call_on_loop(self._schedule_delivery, envelope, incoming.due_time + self._conditions.latency_s(sender))

    def _send_status(self, sender: str, number: int) -> None:
        """Tell a sender where its message stands."""
        with self._lock:
            incoming = self._reassemblies.get((sender, number))
            whole = number in self._completed.get(sender, ())
            missing = incoming.missing_chunks() if incoming is not None else []
        life = self._peers.incarnation_of(sender) or 0
        if incoming is None:
            reply: ControlMessage = (
                ChunksReceived(number, 2**32 - 1) if whole else TransferDeclined(number, "unknown here")
            )
            self._send_control(sender, reply, life)
            return
        self._send_control(sender, ChunksReceived(number, incoming.count), life)
        self._send_control(sender, ChunksMissing(number, missing), life)

    def _call_on_loop(self, action: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(action, *args)
        except RuntimeError:  # the loop is closed, and so are we
            _log.debug("something came when all was closed")

    def _is_current_incarnation(self, sender: str, life: int) -> bool:
        if self._peers.incarnation_of(sender) == life:
            return True
        self._call_on_loop(self._peers.on_stale_incarnation, sender, life)
        return False

    # --- on the event loop -----------------------------------------------------------------------------------------

    def _schedule_delivery(self, envelope: Envelope, due: float) -> None:
        """Let a message arrive when a shaped link would have brought it, and never ahead of the one before."""
        waiting = self._delayed.setdefault(envelope.sender, deque())
        waiting.append((due, envelope))
        if len(waiting) == 1:
            self._deliver_due(envelope.sender)

    def _deliver_due(self, sender: str) -> None:
        waiting = self._delayed.get(sender, deque())
        while waiting and waiting[0][0] <= self._now():
            self.deliver_envelope(waiting.popleft()[1])
        if waiting:
            self._loop.call_later(waiting[0][0] - self._now(), self._deliver_due, sender)
        else:
            self._delayed.pop(sender, None)

    def deliver_envelope(self, envelope: Envelope) -> None:
        """Deliver, unless the sender has died meanwhile or the message gets lost."""
        if self._peers.incarnation_of(envelope.sender) != envelope.incarnation:
            return
        if not self._conditions.drops_message(envelope.sender, envelope.message):
            self._deliver(envelope)

    def abort_message(self, sender: str, number: int) -> None:
        """The sender has given it up."""
        with self._lock:
            self._reassemblies.pop((sender, number), None)

    def drop_peer(self, name: str) -> None:
        """Nothing more is expected from it."""
        self._delayed.pop(name, None)
        with self._lock:
            self._completed.pop(name, None)
            for key in [key for key in self._reassemblies if key[0] == name]:
                del self._reassemblies[key]

    def clear(self) -> None:
        with self._lock:
            self._reassemblies.clear()
