"""What the coordinator and a device have in common: session, transport, mailbox, heartbeat and node.

They are opened and closed together; what differs between the two sides is a NodeOwner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial

import zenoh

from potluck.journal import JournalRecord
from potluck.loops.messages import Message
from potluck.loops.node import Envelope
from potluck.worlds.live import wire_format
from potluck.worlds.live.callback_guard import is_local_error, unexpected_reason
from potluck.worlds.live.compute_speed import ComputeSpeed
from potluck.worlds.live.control_messages import ControlMessage
from potluck.worlds.live.heartbeat import HeartbeatSender
from potluck.worlds.live.inbound_frames import SenderFilter
from potluck.worlds.live.link_shaping import LinkConditions
from potluck.worlds.live.live_node import LiveNode
from potluck.worlds.live.mailbox import Mailbox
from potluck.worlds.live.peer_directory import NodeIdentity, PeerDirectory
from potluck.worlds.live.run_clock import RunClock
from potluck.worlds.live.wire_format import WireError
from potluck.worlds.live.zenoh_session import close_session
from potluck.worlds.live.zenoh_transport import ZenohTransport

__all__ = ["NodeOwner", "NodeRuntime"]

_FLUSH_TIMEOUT_S = 10.0

_log = logging.getLogger("potluck")


class NodeOwner(PeerDirectory):
    """The side of a run that a node belongs to: the coordinator's or a device's."""

    def write_record(self, record: JournalRecord) -> None:
        """Take a record that the node's loop writes."""
        raise NotImplementedError

    def handle_control(self, sender: str, incarnation: int, message: ControlMessage) -> None:
        """Handle a control message that is not about a transfer; called on the event loop."""
        raise NotImplementedError

    def make_heartbeat(self) -> ControlMessage:
        """The heartbeat to send now; called from the heartbeat's thread."""
        raise NotImplementedError

    def on_listening(self) -> None:
        """The loop waits for a message for the first time."""


class NodeRuntime:
    """One node on the network."""

    def __init__(
        self,
        session: zenoh.Session,
        identity: NodeIdentity,
        clock: RunClock,
        compute_speed: ComputeSpeed,
        conditions: LinkConditions,
        owner: NodeOwner,
    ) -> None:
        self.session = session
        self._identity = identity
        self._conditions = conditions
        self._owner = owner
        self.sender_filter = SenderFilter(lambda name: owner.incarnation_of(name) is not None, self._on_excess)
        self.transport = ZenohTransport(session, identity.era, identity.name)
        self.node = LiveNode(
            identity,
            clock,
            compute_speed,
            send=lambda to, message: self.mailbox.send(to, message),
            record=owner.write_record,
            on_listening=owner.on_listening,
        )
        self.mailbox = Mailbox(self.transport, identity, owner, conditions, clock.now, self.node.deliver)
        self.heartbeat = HeartbeatSender(self.transport, identity.incarnation, identity.lease, owner.make_heartbeat)

    def open(self) -> None:
        """Subscribe to the node's messages and start sending heartbeats."""
        self.transport.subscribe_inbox(
            self._on_control_frame, self.mailbox.handle_bulk, self._refuse_message, self.sender_filter.accepts
        )
        self.heartbeat.start(self._conditions.is_cut)

    async def close(self) -> None:
        """Close everything, so that no thread, task or port is left."""
        self.heartbeat.stop()
        await self.mailbox.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                await self.transport.flush_control()
        await asyncio.to_thread(self.transport.close)
        await self.node.close()
        await close_session(self.session)

    def _on_control_frame(self, sender: str, frame: bytes) -> None:
        """Called from one of Zenoh's threads."""
        if not self._conditions.is_cut(sender):
            self.mailbox.inbound.put_frame(sender, frame, self._handle_control_frame)

    def _on_excess(self, sender: str, count: int) -> None:
        self.mailbox.inbound.put(sender, partial(self._owner.on_excess, sender, count))

    def _refuse_message(self, sender: str, reason: str) -> None:
        """A handler failed on one of Zenoh's threads."""
        self.mailbox.inbound.put(sender, partial(self._owner.on_protocol_violation, sender, None, reason))

    def _handle_control_frame(self, sender: str, data: bytes) -> None:
        try:
            self._dispatch_control_frame(sender, data)
        except Exception as error:
            if is_local_error(error):
                raise
            _log.debug("unexpected", exc_info=True)
            self._owner.on_protocol_violation(sender, None, unexpected_reason(error))

    def _dispatch_control_frame(self, sender: str, data: bytes) -> None:
        try:
            frame = wire_format.decode_frame(data)
        except WireError as error:
            self._owner.on_protocol_violation(sender, None, str(error))
            return
        if frame.to_incarnation not in (0, self._identity.incarnation):
            return
        if self._owner.incarnation_of(sender) != frame.incarnation:
            self._owner.on_stale_incarnation(sender, frame.incarnation)
            return
        self._owner.record_contact(sender, frame.incarnation)
        if isinstance(frame.message, Message):
            self.mailbox.deliver_envelope(Envelope(sender, frame.incarnation, frame.message))
        elif not self.mailbox.handle_control(sender, frame.message):
            self._owner.handle_control(sender, frame.incarnation, frame.message)
