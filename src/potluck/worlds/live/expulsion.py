"""Cuts off devices that were expelled: their frames are dropped unread, their connections closed for as long as that.

A link belongs to the device that its certificate names. Without certificates it belongs to the one that asked for the
coordinator's clock on it, which is only a claim, as everything is on a network that `--insecure` trusts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping

import zenoh
from zenoh.handlers import Callback

from potluck.worlds.live.callback_guard import guard_callback
from potluck.worlds.live.connections.own_sockets import shut_connection
from potluck.worlds.live.control_messages import ExpelNotice
from potluck.worlds.live.inbound_frames import FLOOD, SenderFilter
from potluck.worlds.live.rate_limits import RateLimit, RateLimiter
from potluck.worlds.live.repeated_log import RepeatedLog

__all__ = ["Expulsions"]

_NOTICE_S = 0.2  # for the device to be told before its connection is closed
_MAX_SESSIONS = 4096  # names come from the network, so their number is not bounded
_NOTICES = RateLimit(per_s=2.0, burst=4.0)  # to a device that was lost
_MAX_REASON = 1000
_STRANGER_S = 5.0  # for which a device that does not take part and floods is cut off

_log = logging.getLogger("potluck")


class Expulsions:
    """Which devices are cut off, and which links are theirs."""

    def __init__(
        self,
        session: zenoh.Session,
        common_names: Mapping[str, str],
        senders: SenderFilter,
        send_control: Callable[[str, ExpelNotice, int], None],
    ) -> None:
        self._session = session
        self._send_control = send_control
        self._notices = RateLimiter(_NOTICES)
        self.offence_log = RepeatedLog(_log.warning)
        self._names = {common_name: name for name, common_name in common_names.items()}
        self._senders = senders
        self._zids: dict[str, str] = {}  # device → the Zenoh session that it says it has
        self._loop = asyncio.get_running_loop()

    def watch_links(self) -> None:
        """Close the links that an expelled device opens from now on; may block."""
        handler = guard_callback(self._on_link_event)
        self._session.info.declare_link_events_listener(Callback(handler, indirect=True), history=False)

    def remember_session(self, name: str, zid: str) -> None:
        """A device sent something in its session; called from any thread."""
        if len(self._zids) >= _MAX_SESSIONS:
            self._zids.clear()
        self._zids[name] = zid

    def log_offence(self, name: str, text: str, count: int = 1) -> None:
        """One line per device and minute, with a count."""
        self.offence_log.add(name, text, count)

    def on_flood(self, name: str, count: int) -> None:
        """`count` messages of a device that does not take part were dropped: many of them cut it off, too."""
        self.log_offence(name, f"dropped messages of {name}, which does not take part", count)
        if count >= FLOOD and not self._senders.is_blocked(name):
            self._cut_off(name, _STRANGER_S)

    def tell_lost(self, name: str, incarnation: int) -> None:
        """A device does not know that it was lost: tell it, but not for every message that it sends."""
        if self._notices.take(name, time.monotonic()):
            self._send_control(name, ExpelNotice(incarnation, "the coordinator considers it lost"), incarnation)

    def expel(self, name: str, incarnation: int, seconds: float, reason: str) -> None:
        """Cut a device off for a while; its connection is closed as soon as it can have heard why."""
        notice = ExpelNotice(incarnation, f"expelled for {seconds:.3g} s: {reason}"[:_MAX_REASON])
        self._send_control(name, notice, incarnation)
        self._cut_off(name, seconds)

    def _cut_off(self, name: str, seconds: float) -> None:
        self._senders.block(name, seconds)
        self._loop.call_later(_NOTICE_S, self._close_links_in_thread, name)

    def readmit(self, name: str) -> None:
        self._senders.unblock(name)

    def _close_links_in_thread(self, name: str) -> None:
        with contextlib.suppress(RuntimeError):  # the run has ended
            self._loop.run_in_executor(None, self._close_links, name)

    def _close_links(self, name: str) -> None:
        if not self._senders.is_blocked(name):
            return
        for link in self._session.info.links():
            if self._owner_of(link) == name:
                shut_connection(link.src, link.dst)

    def _on_link_event(self, event: zenoh.LinkEvent) -> None:
        """Called from a thread of its own."""
        owner = self._owner_of(event.link)
        if event.kind == zenoh.SampleKind.PUT and owner is not None and self._senders.is_blocked(owner):
            shut_connection(event.link.src, event.link.dst)

    def _owner_of(self, link: zenoh.Link) -> str | None:
        if link.auth_identifier:
            return self._names.get(link.auth_identifier)
        zid = str(link.zid)
        return next((name for name, known in self._zids.items() if known == zid), None)
