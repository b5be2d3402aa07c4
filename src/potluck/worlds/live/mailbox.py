"""Carries messages between nodes, both ways; `outbound` and `inbound` do the work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from potluck.loops.messages import Message
from potluck.loops.node import Envelope
from potluck.worlds.live.control_messages import (
    ChunksMissing,
    ChunksReceived,
    ControlMessage,
    TransferAborted,
    TransferDeclined,
)
from potluck.worlds.live.link_shaping import LinkConditions
from potluck.worlds.live.peer_directory import PeerDirectory
from potluck.worlds.live.receiver import MessageReceiver
from potluck.worlds.live.sender import MessageSender, SendFuture
from potluck.worlds.live.zenoh_transport import ZenohTransport

__all__ = ["Mailbox"]


class Mailbox:
    """All that one node has on its way."""

    def __init__(
        self,
        post: ZenohTransport,
        life: int,
        neighbours: PeerDirectory,
        conditions: LinkConditions,
        limit_bytes: int,
        now: Callable[[], float],
        deliver: Callable[[Envelope], None],
        before_last: Callable[[], Awaitable[object]],
    ) -> None:
        self._sender = MessageSender(post, life, neighbours, conditions, now, before_last)
        self._receiver = MessageReceiver(
            life, neighbours, conditions, limit_bytes, now, self._sender.send_control, deliver
        )
        self.handle_bulk = self._receiver.handle_bulk
        self.deliver_envelope = self._receiver.deliver_envelope

    def send(self, to: str, message: Message) -> SendFuture | None:
        """Put a message on its way; None if there is nothing to wait for."""
        return self._sender.send(to, message)

    def send_control(self, to: str, note: Message | ControlMessage, to_life: int = 0) -> None:
        """Put a small frame on its way at once; from any thread."""
        self._sender.send_control(to, note, to_life)

    def handle_control(self, sender: str, note: ControlMessage) -> bool:
        """Whether it was about a message on its way; on the event loop."""
        match note:
            case ChunksReceived(number=number, count=there):
                self._sender.on_chunks_received(sender, number, there)
            case ChunksMissing(number=number, indices=indices):
                self._sender.on_chunks_missing(sender, number, indices)
            case TransferDeclined(number=number, reason=reason):
                self._sender.on_declined(sender, number, reason)
            case TransferAborted(number=number):
                self._receiver.abort_message(sender, number)
            case _:
                return False
        return True

    def drop_peer(self, name: str) -> None:
        """This life of it is over: nothing more is sent to it or expected from it."""
        self._sender.drop_peer(name)
        self._receiver.drop_peer(name)

    async def close(self) -> None:
        await self._sender.close()
        self._receiver.clear()
