"""Sends a node's messages: small ones in a frame, large ones in chunks that are confirmed or sent again.

    send ──▶ channel (one per receiver, FIFO) ──▶ chunks, at most a window unconfirmed ──▶ link
                         missing chunks are resent ◀── ChunksReceived, ChunksMissing ◀──────┘

The future of `send` is done when the link has taken the last byte, as far as the receiver's confirmations tell: buffers
on the way may take megabytes at once. Until then the next message to that receiver waits, so a loop that chooses what
to send next chooses late. Lost chunks are resent in the background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import zenoh

from potluck.loops.messages import Bulky, Message
from potluck.worlds.live import wire_format
from potluck.worlds.live.chunked_transfer import OutgoingTransfer
from potluck.worlds.live.control_messages import ControlMessage, TransferAborted
from potluck.worlds.live.link_shaping import LinkConditions
from potluck.worlds.live.peer_directory import PeerDirectory
from potluck.worlds.live.peer_throughput import PeerThroughput
from potluck.worlds.live.wire_format import STATUS_REQUEST
from potluck.worlds.live.zenoh_transport import ZenohTransport

__all__ = ["MessageSender", "SendFuture"]

_CHUNKS_PER_PUT = 4  # chunks that a thread sends in one call on an unshaped link
_GIVE_UP_S = 600.0  # silence of the receiver after which a message is given up

_log = logging.getLogger("potluck")


class SendFuture(asyncio.Future[None]):
    """Done when the link has taken the last byte. Cancelling it drops the message."""

    on_cancel: Callable[[], None] | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.done() and self.on_cancel is not None:
            self.on_cancel()
        return super().cancel(msg)


class _ActiveTransfer:
    """A large message that is being sent."""

    def __init__(
        self, to: str, to_incarnation: int, outgoing: OutgoingTransfer, ready_at: float, throughput: PeerThroughput
    ) -> None:
        self.to = to
        self.ready_at = ready_at  # when its next chunk could be sent; kept exact, so that shaped links do not drift
        self.to_incarnation = to_incarnation
        self.outgoing = outgoing
        self.throughput = throughput
        self.send_future = SendFuture(loop=asyncio.get_running_loop())
        self.progressed = asyncio.Event()
        self.ended = asyncio.Event()  # confirmed, given up or aborted
        self.task: asyncio.Task[None] | None = None


class MessageSender:
    """Sends the messages of one node; runs on the event loop."""

    def __init__(
        self,
        transport: ZenohTransport,
        incarnation: int,
        peers: PeerDirectory,
        conditions: LinkConditions,
        now: Callable[[], float],
    ) -> None:
        self._transport = transport
        self._incarnation = incarnation
        self._peers = peers
        self._conditions = conditions
        self._now = now

        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._transfers: dict[int, _ActiveTransfer] = {}
        self._channel_locks: dict[str, asyncio.Lock] = {}
        self._throughputs: dict[str, PeerThroughput] = {}
        self._free_at: dict[str, float] = {}  # when the last message on a channel was sent
        self._background: set[asyncio.Task[None]] = set()

    def send(self, to: str, message: Message) -> SendFuture | None:
        """Start sending a message; None if there is nothing to wait for."""
        incarnation = self._peers.incarnation_of(to)
        if incarnation is None or self._conditions.is_cut(to):
            return None
        if not isinstance(message, Bulky):
            self.send_control(to, message, incarnation, self._conditions.latency_s(to))
            return None
        throughput = self._throughputs.setdefault(to, PeerThroughput())
        chunk_bytes = min(throughput.chunk_bytes(), self._conditions.max_chunk_bytes(to))
        outgoing = OutgoingTransfer(next(self._numbers), message, chunk_bytes, throughput.window_chunks(chunk_bytes))
        transfer = _ActiveTransfer(to, incarnation, outgoing, self._now(), throughput)
        self._transfers[outgoing.number] = transfer
        transfer.send_future.on_cancel = lambda: self._abort_transfer(transfer)
        transfer.task = self._loop.create_task(self._run_transfer(transfer))
        self._background.add(transfer.task)
        transfer.task.add_done_callback(lambda _: self._end_transfer(transfer))
        return transfer.send_future

    def send_control(
        self, to: str, message: Message | ControlMessage, to_incarnation: int = 0, delay: float = 0.0
    ) -> None:
        """Send a control frame; without a delay it may be called from any thread."""
        frame = wire_format.encode_frame(self._incarnation, to_incarnation, message)
        if delay > 0:
            self._loop.call_later(delay, self._transport.send_control, to, frame)
        elif not self._conditions.is_cut(to):
            self._transport.send_control(to, frame)

    async def _run_transfer(self, transfer: _ActiveTransfer) -> None:
        try:
            async with self._channel_locks.setdefault(transfer.to, asyncio.Lock()):
                transfer.ready_at = max(transfer.ready_at, self._free_at.get(transfer.to, 0.0))
                transfer.ready_at += self._conditions.overhead_s(transfer.to)
                transfer.throughput.start_timing()
                await self._send_offer(transfer)
                await self._send_chunks(transfer, lambda: transfer.outgoing.is_sent)
                self._free_at[transfer.to] = transfer.ready_at
                await self._wait_for_earlier(transfer)
            _resolve_send(transfer.send_future)
            await self._send_chunks(transfer, lambda: transfer.outgoing.is_confirmed)
        except zenoh.ZError as error:
            _log.debug("%s cannot send to %s: %s", self._transport.name, transfer.to, error)

    def _end_transfer(self, transfer: _ActiveTransfer) -> None:
        """Forget a transfer whose task is done; one that was cancelled at once has run no line of its own."""
        assert transfer.task is not None
        self._background.discard(transfer.task)
        self._transfers.pop(transfer.outgoing.number, None)
        transfer.ended.set()
        _resolve_send(transfer.send_future)

    async def _wait_for_earlier(self, transfer: _ActiveTransfer) -> None:
        """Wait until hardly anything that was sent before this message is unconfirmed."""
        most = transfer.throughput.bytes_ahead()
        earlier = [other for other in self._transfers.values() if other.to == transfer.to and other is not transfer]
        while (
            sum(other.outgoing.unconfirmed_bytes for other in earlier if not other.ended.is_set()) > most
            and transfer.outgoing.number in self._transfers
        ):
            waits = (other for other in earlier if not other.ended.is_set() and other.outgoing.unconfirmed_bytes)
            await next(waits).ended.wait()

    async def _send_offer(self, transfer: _ActiveTransfer) -> None:
        out = transfer.outgoing
        offer = wire_format.encode_offer(
            self._incarnation, transfer.to_incarnation, out.number, out.message, out.arrays, out.chunk_bytes
        )
        if out.layout.chunk_count == 0:
            await self._peers.before_last_chunk()
        if not self._conditions.is_cut(transfer.to):
            await self._transport.put_chunks(transfer.to, lambda: (offer, None))

    async def _send_chunks(self, transfer: _ActiveTransfer, is_enough: Callable[[], bool]) -> None:
        """Send chunks until `is_enough`; while the window is full, wait for confirmations and ask for them."""
        silent_s = 0.0
        while not is_enough():
            index = transfer.outgoing.next_chunk()
            if index is not None:
                await self._send_chunk(transfer, index)
                silent_s = 0.0
            elif not await _wait_for_progress(
                transfer.progressed, timeout_s := transfer.throughput.status_timeout_s(silent_s)
            ):
                silent_s += timeout_s
                if silent_s > _GIVE_UP_S:
                    _log.warning(
                        "%s gave up a message to %s: no answer for %g s", self._transport.name, transfer.to, silent_s
                    )
                    return
                await self._request_status(transfer)
            else:
                silent_s = 0.0
                transfer.ready_at = max(transfer.ready_at, self._now())

    async def _send_chunk(self, transfer: _ActiveTransfer, index: int) -> None:
        out, to = transfer.outgoing, transfer.to
        times = self._conditions.schedule_send(to, out.layout.chunk_size(index), transfer.ready_at)
        started_at, finished_at = times if times is not None else (0.0, 0.0)
        if times is not None:
            transfer.ready_at = finished_at
            await asyncio.sleep(max(0.0, finished_at - self._now()))
        if index == out.layout.chunk_count - 1:
            await self._peers.before_last_chunk()
        extra = out.next_chunks(_CHUNKS_PER_PUT - 1) if times is None else []
        if not self._conditions.is_cut(to):
            chunks = [
                partial(self._encode_chunk, out, position, started_at, finished_at) for position in (index, *extra)
            ]
            await self._transport.put_chunks(to, *chunks)

    async def _request_status(self, transfer: _ActiveTransfer) -> None:
        """Ask which chunks have arrived; sent after the chunks on their lane, so what is missing then is lost."""
        transfer.outgoing.mark_status_requested()
        head = wire_format.encode_chunk(self._incarnation, transfer.outgoing.number, STATUS_REQUEST, b"")
        if not self._conditions.is_cut(transfer.to):
            await self._transport.put_chunks(transfer.to, lambda: (b"", head))

    def _encode_chunk(
        self, out: OutgoingTransfer, index: int, started_at: float, finished_at: float
    ) -> tuple[bytes, bytes]:
        data = out.read_chunk(index)
        return data, wire_format.encode_chunk(self._incarnation, out.number, index, data, started_at, finished_at)

    def _abort_transfer(self, transfer: _ActiveTransfer) -> None:
        if transfer.task is not None:
            transfer.task.cancel()
        self.send_control(transfer.to, TransferAborted(transfer.outgoing.number), transfer.to_incarnation)

    # --- the receiver's answers ------------------------------------------------------------------------------------

    def on_chunks_received(self, sender: str, number: int, count: int) -> None:
        """The receiver has `count` chunks."""
        transfer = self._find_transfer(sender, number)
        if transfer is not None:
            before = transfer.outgoing.confirmed
            transfer.outgoing.confirm_chunks(count)
            transfer.throughput.record_confirmed((transfer.outgoing.confirmed - before) * transfer.outgoing.chunk_bytes)
            transfer.progressed.set()

    def on_chunks_missing(self, sender: str, number: int, indices: list[int]) -> None:
        """The receiver lacks these chunks."""
        transfer = self._find_transfer(sender, number)
        if transfer is not None:
            transfer.outgoing.resend_chunks(indices)
            transfer.progressed.set()

    def on_declined(self, sender: str, number: int, reason: str) -> None:
        _log.warning("%s declined a message of %s: %s", sender, self._transport.name, reason)
        transfer = self._find_transfer(sender, number)
        if transfer is not None and transfer.task is not None:
            transfer.task.cancel()

    def drop_peer(self, name: str) -> None:
        """Stop sending to a peer."""
        self._throughputs.pop(name, None)
        for transfer in [transfer for transfer in self._transfers.values() if transfer.to == name]:
            if transfer.task is not None:
                transfer.task.cancel()
            _resolve_send(transfer.send_future)

    async def close(self) -> None:
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _find_transfer(self, sender: str, number: int) -> _ActiveTransfer | None:
        transfer = self._transfers.get(number)
        return transfer if transfer is not None and transfer.to == sender else None


async def _wait_for_progress(event: asyncio.Event, seconds: float) -> bool:
    """Whether the receiver answered in time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True


def _resolve_send(future: SendFuture) -> None:
    future.on_cancel = None
    if not future.done():
        future.set_result(None)
