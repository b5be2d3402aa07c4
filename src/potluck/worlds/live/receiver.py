"""Receives a node's messages: offers and chunks are checked and stored on Zenoh's threads.

Complete messages are handed to the event loop in the order in which they were completed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from potluck.loops.node import Envelope, MeasuredTransfer
from potluck.worlds.live import wire_format
from potluck.worlds.live.chunked_transfer import CONFIRM_EVERY, Reassembly
from potluck.worlds.live.control_messages import ChunksMissing, ChunksReceived, ControlMessage, TransferDeclined
from potluck.worlds.live.inbound_frames import InboundQueue
from potluck.worlds.live.link_shaping import LinkConditions
from potluck.worlds.live.peer_directory import NodeIdentity, PeerDirectory
from potluck.worlds.live.wire_format import STATUS_REQUEST, WireError

__all__ = ["MessageReceiver"]

_MAX_OPEN_TRANSFERS = 64  # per sender
_MAX_AHEAD_S = 600.0  # of this node's clock; a chunk of later would hold up all that follow
_MAX_COMPLETED = 256  # completed messages to remember per sender

_log = logging.getLogger("potluck")


class MessageReceiver:
    """Receives the messages of one node."""

    def __init__(
        self,
        identity: NodeIdentity,
        peers: PeerDirectory,
        conditions: LinkConditions,
        now: Callable[[], float],
        send_control: Callable[[str, ControlMessage, int], None],
        deliver: Callable[[Envelope], None],
    ) -> None:
        self._incarnation = identity.incarnation
        self._limit_bytes = identity.limit_bytes
        self._peers = peers
        self._conditions = conditions

        self._now = now
        self._send_control = send_control
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self.inbound = InboundQueue()
        self._reassemblies: dict[tuple[str, int], Reassembly] = {}
        self._completed: dict[str, deque[int]] = {}
        self._complete_at: dict[str, float] = {}  # when the latest message of each sender was complete
        self._lock = threading.Lock()  # guards the three above, which Zenoh's threads fill
        self._delayed: dict[str, deque[tuple[float, Envelope]]] = {}  # complete, but not yet due on a shaped link

    # --- called from Zenoh's threads -------------------------------------------------------------------------------

    def handle_bulk(self, sender: str, data: bytes, head: bytes | None) -> None:
        """Handle an offer (without a header) or a chunk."""
        if self._conditions.is_cut(sender):
            return
        try:
            if head is None:
                self._handle_offer(sender, data)
            else:
                self._handle_chunk(sender, head, data)
        except WireError as error:
            self.inbound.put(sender, partial(self._peers.on_protocol_violation, sender, None, str(error)))

    def _handle_offer(self, sender: str, data: bytes) -> None:
        offer = wire_format.decode_offer(data, self._limit_bytes)
        if not self._is_current_incarnation(sender, offer.incarnation) or offer.to_incarnation not in (
            0,
            self._incarnation,
        ):
            return
        with self._lock:
            open_transfers = [reassembly for key, reassembly in self._reassemblies.items() if key[0] == sender]
            nbytes = sum(reassembly.nbytes for reassembly in open_transfers) + wire_format.announced_bytes(offer)
            if len(open_transfers) >= _MAX_OPEN_TRANSFERS or nbytes > 2 * self._limit_bytes:
                self._send_control(
                    sender, TransferDeclined(offer.number, "too many messages at once"), offer.incarnation
                )
                return
            reassembly = self._reassemblies.setdefault((sender, offer.number), Reassembly(offer, self._now()))
        if reassembly.is_complete:
            self._finish_message(sender, offer.number, reassembly)

    def _handle_chunk(self, sender: str, head: bytes, data: bytes) -> None:
        chunk = wire_format.decode_chunk(head, data)
        if chunk.finished_at > self._now() + _MAX_AHEAD_S:
            raise WireError(
                f"chunk {chunk.chunk_index} of message {chunk.number} was sent at {chunk.finished_at:.6g} s"
            )
        if not self._is_current_incarnation(sender, chunk.incarnation):
            return
        if chunk.chunk_index == STATUS_REQUEST:
            self._send_status(sender, chunk.number)
            return
        with self._lock:
            reassembly = self._reassemblies.get((sender, chunk.number))
            if reassembly is None or reassembly.is_complete:
                return  # aborted, declined or already complete
            skipped = reassembly.add_chunk(chunk, data)
            received_at = self._conditions.schedule_receive(len(data), chunk.started_at)
            reassembly.due_time = max(reassembly.due_time, received_at, chunk.finished_at)
        if skipped:
            self._send_control(sender, ChunksMissing(chunk.number, skipped), chunk.incarnation)
        if reassembly.is_complete:
            self._finish_message(sender, chunk.number, reassembly)
        if reassembly.is_complete or reassembly.count % CONFIRM_EVERY == 0:
            self._send_confirmation(
                sender, chunk.number, reassembly.count, chunk.incarnation, received_at - self._now()
            )

    def _send_confirmation(self, sender: str, number: int, count: int, incarnation: int, delay_s: float) -> None:
        """Confirm chunks, once a shaped link would have delivered them."""
        self._peers.record_contact(sender, incarnation)  # on a slow link heartbeats queue behind the chunks
        if delay_s > 0:
            confirm = partial(self._send_control, sender, ChunksReceived(number, count), incarnation)
            self.inbound.put(sender, partial(self._loop.call_later, delay_s, confirm))
        else:
            self._send_control(sender, ChunksReceived(number, count), incarnation)

    def _finish_message(self, sender: str, number: int, reassembly: Reassembly) -> None:
        with self._lock:
            if self._reassemblies.pop((sender, number), None) is None:
                return  # its sender was lost meanwhile
            self._completed.setdefault(sender, deque(maxlen=_MAX_COMPLETED)).append(number)
            busy_s = self._busy_s(sender, reassembly)
        message = reassembly.assembled_message()
        transfer = MeasuredTransfer(message.nbytes, busy_s, self._conditions.overhead_s(sender))
        envelope = Envelope(sender, reassembly.offer.incarnation, message, transfer)
        due = reassembly.due_time + self._conditions.latency_s(sender)
        self.inbound.put(sender, partial(self._schedule_delivery, envelope, due))

    def _busy_s(self, sender: str, reassembly: Reassembly) -> float:
        """How long the link was busy with a message that is complete now, or will be on a shaped link."""
        complete_at = max(self._now(), reassembly.due_time)
        started_at = max(reassembly.started_at, self._complete_at.get(sender, 0.0))
        self._complete_at[sender] = complete_at
        return max(complete_at - started_at, 0.0)

    def _send_status(self, sender: str, number: int) -> None:
        """Answer a status request."""
        with self._lock:
            reassembly = self._reassemblies.get((sender, number))
            completed = number in self._completed.get(sender, ())
            missing = reassembly.missing_chunks() if reassembly is not None else []
        incarnation = self._peers.incarnation_of(sender) or 0
        if reassembly is None:
            reply: ControlMessage = (
                ChunksReceived(number, 2**32 - 1) if completed else TransferDeclined(number, "unknown to the receiver")
            )
            self._send_control(sender, reply, incarnation)
            return
        self._send_control(sender, ChunksReceived(number, reassembly.count), incarnation)
        self._send_control(sender, ChunksMissing(number, missing), incarnation)

    def _is_current_incarnation(self, sender: str, incarnation: int) -> bool:
        if self._peers.incarnation_of(sender) == incarnation:
            return True
        self.inbound.put(sender, partial(self._peers.on_stale_incarnation, sender, incarnation))
        return False

    # --- called on the event loop ----------------------------------------------------------------------------------

    def _schedule_delivery(self, envelope: Envelope, due: float) -> None:
        """Deliver a message when a shaped link would have, and never before an earlier one."""
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
        """Deliver, unless the sender's incarnation has ended meanwhile or the link loses the message."""
        if self._peers.incarnation_of(envelope.sender) != envelope.incarnation:
            return
        if not self._conditions.drops_message(envelope.sender, envelope.message):
            self._deliver(envelope)

    def abort_message(self, sender: str, number: int) -> None:
        """The sender gave the message up."""
        with self._lock:
            self._reassemblies.pop((sender, number), None)

    def drop_peer(self, name: str) -> None:
        """Forget everything received from a peer."""
        self.inbound.drop_sender(name)
        self._delayed.pop(name, None)
        with self._lock:
            self._completed.pop(name, None)
            self._complete_at.pop(name, None)
            for key in [key for key in self._reassemblies if key[0] == name]:
                del self._reassemblies[key]

    def clear(self) -> None:
        with self._lock:
            self._reassemblies.clear()
