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
from potluck.worlds.live import wire_format
from potluck.worlds.live.chunked_transfer import OutgoingTransfer
from potluck.worlds.live.control_messages import ControlMessage, TransferAborted
from potluck.worlds.live.link_shaping import LinkConditions
from potluck.worlds.live.peer_directory import PeerDirectory
from potluck.worlds.live.peer_throughput import PeerThroughput
from potluck.worlds.live.wire_format import ASK
from potluck.worlds.live.zenoh_transport import ZenohTransport

__all__ = ["MessageSender", "SendFuture"]

_AT_ONCE = 4  # chunks that a thread puts on an unshaped link in one go
_LONGEST_S = 600.0  # how long nothing is heard of a message until it is given up

_log = logging.getLogger("potluck")


class SendFuture(asyncio.Future[None]):
    """Done when the link has taken the last byte; cancelled, the rest is not sent and nothing arrives."""

    on_cancel: Callable[[], None] | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.done() and self.on_cancel is not None:
            self.on_cancel()
        return super().cancel(msg)


class _ActiveTransfer:
    """A long message under way, with those who wait for it."""

    def __init__(self, to: str, to_life: int, outgoing: OutgoingTransfer, asked: float, tempo: PeerThroughput) -> None:
        self.to = to
        self.ready_at = asked  # since when its next chunk waits; kept exact, so that shaped links do not drift
        self.to_incarnation = to_life
        self.outgoing = outgoing
        self.throughput = tempo
        self.send_future = SendFuture(loop=asyncio.get_running_loop())
        self.progressed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class MessageSender:
    """All that one node sends; on the event loop."""

    def __init__(
        self,
        post: ZenohTransport,
        life: int,
        neighbours: PeerDirectory,
        conditions: LinkConditions,
        now: Callable[[], float],
        before_last: Callable[[], Awaitable[object]],
    ) -> None:
        self._transport = post
        self._incarnation = life
        self._peers = neighbours
        self._conditions = conditions
        self._now = now
        self._before_last = before_last  # awaited ahead of a message's last chunk
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._transfers: dict[int, _ActiveTransfer] = {}
        self._channel_locks: dict[str, asyncio.Lock] = {}
        self._throughputs: dict[str, PeerThroughput] = {}
        self._free_at: dict[str, float] = {}  # when the last message on a channel was through
        self._background: set[asyncio.Task[None]] = set()

    def send(self, to: str, message: Message) -> SendFuture | None:
        """Put a message on its way; None if there is nothing to wait for."""
        life = self._peers.incarnation_of(to)
        if life is None or self._conditions.is_cut(to):
            return None
        if not isinstance(message, Bulky):
            self.send_control(to, message, life, self._conditions.latency_s(to))
            return None
        tempo = self._throughputs.setdefault(to, PeerThroughput())
        chunk_bytes = min(tempo.chunk_bytes(), self._conditions.max_chunk_bytes(to))
        outgoing = OutgoingTransfer(next(self._numbers), message, chunk_bytes, tempo.window_chunks(chunk_bytes))
        transfer = _ActiveTransfer(to, life, outgoing, self._now(), tempo)
        self._transfers[outgoing.number] = transfer
        transfer.send_future.on_cancel = lambda: self._abort_transfer(transfer)
        transfer.task = self._loop.create_task(self._run_transfer(transfer))
        self._background.add(transfer.task)
        transfer.task.add_done_callback(self._background.discard)
        return transfer.send_future

    def send_control(self, to: str, body: Message | ControlMessage, to_life: int = 0, delay: float = 0.0) -> None:
        """Put a small frame on its way; from any thread where there is no delay."""
        frame = wire_format.encode_frame(self._incarnation, to_life, body)
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
            _resolve_send(transfer.send_future)
            await self._send_chunks(transfer, lambda: transfer.outgoing.is_confirmed)
        except zenoh.ZError as error:
            _log.debug("%s cannot send to %s: %s", self._transport.name, transfer.to, error)
        finally:
            _resolve_send(transfer.send_future)
            self._transfers.pop(transfer.outgoing.number, None)

    async def _send_offer(self, transfer: _ActiveTransfer) -> None:
        out = transfer.outgoing
        offer = wire_format.encode_offer(
            self._incarnation, transfer.to_incarnation, out.number, out.message, out.arrays, out.chunk_bytes
        )
        if out.layout.chunk_count == 0:
            await self._before_last()
        if not self._conditions.is_cut(transfer.to):
            await self._transport.put_chunks(transfer.to, lambda: (offer, None))

    async def _send_chunks(self, transfer: _ActiveTransfer, enough: Callable[[], bool]) -> None:
        """Send chunk after chunk; where the window is full wait for word, and ask for it."""
        silent = 0.0
        while not enough():
            index = transfer.outgoing.next_chunk()
            if index is not None:
                await self._send_chunk(transfer, index)
                silent = 0.0
            elif not await _wait_for_progress(
                transfer.progressed, pause := transfer.throughput.status_timeout_s(silent)
            ):
                silent += pause
                if silent > _LONGEST_S:
                    _log.warning(
                        "%s gave up a message to %s: not a word for %g s", self._transport.name, transfer.to, silent
                    )
                    return
                await self._request_status(transfer)
            else:
                silent = 0.0
                transfer.ready_at = max(transfer.ready_at, self._now())

    async def _send_chunk(self, transfer: _ActiveTransfer, index: int) -> None:
        out, to = transfer.outgoing, transfer.to
        taken = self._conditions.schedule_send(to, out.layout.chunk_size(index), transfer.ready_at)
        begun, until = taken if taken is not None else (0.0, 0.0)
        if taken is not None:
            transfer.ready_at = until
            await asyncio.sleep(max(0.0, until - self._now()))
        if index == out.layout.chunk_count - 1:
            await self._before_last()
        more = out.next_chunks(_AT_ONCE - 1) if taken is None else []
        if not self._conditions.is_cut(to):
            chunks = [partial(self._encode_chunk, out, place, begun, until) for place in (index, *more)]
            await self._transport.put_chunks(to, *chunks)

    async def _request_status(self, transfer: _ActiveTransfer) -> None:
        """Behind the chunks that are on their way, so that whatever is missing then is lost."""
        transfer.outgoing.mark_status_requested()
        head = wire_format.encode_chunk(self._incarnation, transfer.outgoing.number, ASK, b"")
        if not self._conditions.is_cut(transfer.to):
            await self._transport.put_chunks(transfer.to, lambda: (b"", head))

    def _encode_chunk(self, out: OutgoingTransfer, index: int, begun: float, until: float) -> tuple[bytes, bytes]:
        data = out.read_chunk(index)
        return data, wire_format.encode_chunk(self._incarnation, out.number, index, data, begun, until)

    def _abort_transfer(self, transfer: _ActiveTransfer) -> None:
        if transfer.task is not None:
            transfer.task.cancel()
        self.send_control(transfer.to, TransferAborted(transfer.outgoing.number), transfer.to_incarnation)

    # --- what the receiver says ------------------------------------------------------------------------------------

    def on_chunks_received(self, sender: str, number: int, there: int) -> None:
        """So many chunks are there."""
        transfer = self._find_transfer(sender, number)
        if transfer is not None:
            before = transfer.outgoing.confirmed
            transfer.outgoing.confirm_chunks(there)
            transfer.throughput.record_confirmed((transfer.outgoing.confirmed - before) * transfer.outgoing.chunk_bytes)
            transfer.progressed.set()

    def on_chunks_missing(self, sender: str, number: int, indices: list[int]) -> None:
        """These did not come."""
        transfer = self._find_transfer(sender, number)
        if transfer is not None:
            transfer.outgoing.resend_chunks(indices)
            transfer.progressed.set()

    def on_declined(self, sender: str, number: int, reason: str) -> None:
        _log.warning("%s did not take a message of %s: %s", sender, self._transport.name, reason)
        transfer = self._find_transfer(sender, number)
        if transfer is not None and transfer.task is not None:
            transfer.task.cancel()

    def drop_peer(self, name: str) -> None:
        """Nothing more is sent to it."""
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
    """Whether something was heard in time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True


def _resolve_send(sending: SendFuture) -> None:
    sending.on_cancel = None
    if not sending.done():
        sending.set_result(None)
