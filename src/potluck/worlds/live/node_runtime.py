"""What either side of a run is made of: session, post, carrier, heart and node, opened and closed together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec
import zenoh

from potluck.journal import JournalRecord
from potluck.loops.messages import Message
from potluck.loops.node import Envelope
from potluck.worlds.live import wire_format
from potluck.worlds.live.compute_speed import ComputeSpeed
from potluck.worlds.live.control_messages import ControlMessage
from potluck.worlds.live.heartbeat import HeartbeatSender
from potluck.worlds.live.link_shaping import LinkConditions
from potluck.worlds.live.live_node import LiveNode
from potluck.worlds.live.mailbox import Mailbox
from potluck.worlds.live.peer_directory import PeerDirectory
from potluck.worlds.live.run_clock import RunClock
from potluck.worlds.live.wire_format import WireError
from potluck.worlds.live.zenoh_session import close_session
from potluck.worlds.live.zenoh_transport import ZenohTransport

__all__ = ["NodeIdentity", "NodeRuntime"]

_CLOSING_S = 10.0


class NodeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Who speaks, in which life and which era."""

    name: str
    incarnation: int
    era: str
    seed: int
    lease: float
    limit_bytes: int


class NodeRuntime:
    """One node on the network; what is special to a side comes in by `neighbours`, `take_note` and `record`."""

    def __init__(
        self,
        session: zenoh.Session,
        who: NodeIdentity,
        clock: RunClock,
        effort: ComputeSpeed,
        conditions: LinkConditions,
        neighbours: PeerDirectory,
        *,
        record: Callable[[JournalRecord], None],
        take_note: Callable[[str, int, ControlMessage], None],
        beat: Callable[[], ControlMessage],
        before_last: Callable[[], Awaitable[object]],
        listening: Callable[[], None] = lambda: None,
    ) -> None:
        self.session = session
        self._identity = who
        self._conditions = conditions
        self._peers = neighbours
        self._handle_control = take_note
        self._loop = asyncio.get_running_loop()
        self.transport = ZenohTransport(session, who.era, who.name)
        self.node = LiveNode(who.name, who.incarnation, who.seed, clock, effort, self._send_message, record, listening)
        self.mailbox = Mailbox(
            self.transport,
            who.incarnation,
            neighbours,
            conditions,
            who.limit_bytes,
            clock.now,
            self.node.deliver,
            before_last,
        )
        self.heartbeat = HeartbeatSender(self.transport, who.incarnation, who.lease, beat)

    def open(self) -> None:
        """Listen, and let the heart beat."""
        self.transport.subscribe_inbox(self._on_control_frame, self.mailbox.handle_bulk)
        self.heartbeat.start(self._conditions.is_cut)

    async def close(self) -> None:
        """Leave nothing behind: no thread, no task, no port."""
        self.heartbeat.stop()
        await self.mailbox.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_S):
                await self.transport.flush_control()
        await asyncio.to_thread(self.transport.close)
        await self.node.close()
        await close_session(self.session)

    def _send_message(self, to: str, message: Message) -> Awaitable[None] | None:
        return self.mailbox.send(to, message)

    def _on_control_frame(self, sender: str, frame: bytes) -> None:
        """On one of Zenoh's threads."""
        if not self._conditions.is_cut(sender):
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so are we
                self._loop.call_soon_threadsafe(self._handle_control_frame, sender, frame)

    def _handle_control_frame(self, sender: str, data: bytes) -> None:
        try:
            frame = wire_format.decode_frame(data)
        except WireError as error:
            self._peers.on_protocol_violation(sender, None, str(error))
            return
        if frame.to_life not in (0, self._identity.incarnation):
            return
        if self._peers.incarnation_of(sender) != frame.life:
            self._peers.on_stale_incarnation(sender, frame.life)
            return
        self._peers.record_contact(sender, frame.life)
        if isinstance(frame.body, Message):
            self.mailbox.deliver_envelope(Envelope(sender, frame.life, frame.body))
        elif not self.mailbox.handle_control(sender, frame.body):
            self._handle_control(sender, frame.life, frame.body)
