"""Sends and receives the messages of one node; `sender.py` and `receiver.py` implement the two directions."""

from __future__ import annotations

from collections.abc import Callable

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
from potluck.worlds.live.peer_directory import NodeIdentity, PeerDirectory
from potluck.worlds.live.receiver import MessageReceiver
from potluck.worlds.live.sender import MessageSender, SendFuture
from potluck.worlds.live.zenoh_transport import ZenohTransport

__all__ = ["Mailbox"]


class Mailbox:
    """Both directions of one node's messages."""

    def __init__(
        self,
        transport: ZenohTransport,
        identity: NodeIdentity,
        peers: PeerDirectory,
        conditions: LinkConditions,
        now: Callable[[], float],
        deliver: Callable[[Envelope], None],
    ) -> None:
        self._sender = MessageSender(transport, identity.incarnation, peers, conditions, now)
        self._receiver = MessageReceiver(identity, peers, conditions, now, self._sender.send_control, deliver)
        self.inbound = self._receiver.inbound
        self.handle_bulk = self._receiver.handle_bulk
        self.deliver_envelope = self._receiver.deliver_envelope

    def send(self, to: str, message: Message) -> SendFuture | None:
        """Start sending a message; None if there is nothing to wait for."""
        return self._sender.send(to, message)

    def send_control(self, to: str, message: Message | ControlMessage, to_incarnation: int = 0) -> None:
        """Send a control frame immediately; may be called from any thread."""
        self._sender.send_control(to, message, to_incarnation)

    def handle_control(self, sender: str, message: ControlMessage) -> bool:
        """Handle a control message about a transfer; returns False if it is about something else."""
        match message:
            case ChunksReceived(number=number, count=count):
                self._sender.on_chunks_received(sender, number, count)
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
        """The peer's incarnation has ended: drop everything that is being sent to it or received from it."""
        self._sender.drop_peer(name)
        self._receiver.drop_peer(name)

    async def close(self) -> None:
        await self._sender.close()
        self._receiver.clear()
