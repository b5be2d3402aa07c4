"""Sends heartbeats from a dedicated thread.

A busy event loop or a long computation must not look like a dead device.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

import zenoh

from potluck.worlds.live.control_messages import ControlMessage
from potluck.worlds.live.wire_format import encode_frame
from potluck.worlds.live.zenoh_transport import ZenohTransport

__all__ = ["HEARTBEATS_PER_LEASE", "HeartbeatSender"]

HEARTBEATS_PER_LEASE = 5

_log = logging.getLogger("potluck")


class HeartbeatSender:
    """Sends heartbeats to a set of peers until it is stopped."""

    def __init__(
        self, transport: ZenohTransport, incarnation: int, lease: float, make_heartbeat: Callable[[], ControlMessage]
    ) -> None:
        self._transport = transport
        self._incarnation = incarnation
        self._interval = lease / HEARTBEATS_PER_LEASE
        self._make_heartbeat = make_heartbeat
        self._stopped = threading.Event()
        self._recipients: Mapping[str, int] = {}
        self._is_cut: Callable[[str], bool] = lambda name: False
        self._thread = threading.Thread(
            target=self._send_periodically, name=f"potluck-heartbeat-{transport.name}", daemon=True
        )

    def start(self, is_cut: Callable[[str], bool]) -> None:
        self._is_cut = is_cut
        self._thread.start()

    def set_recipients(self, incarnations: Mapping[str, int]) -> None:
        """Send to these from now on; pass a new mapping each time, since the thread iterates over it."""
        self._recipients = incarnations

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(2 * self._interval + 5.0)

    def _send_periodically(self) -> None:
        while not self._stopped.wait(self._interval):
            for name, incarnation in self._recipients.items():
                if not self._is_cut(name):
                    self._send_heartbeat(name, incarnation)

    def _send_heartbeat(self, name: str, incarnation: int) -> None:
        try:
            self._transport.send_control_now(name, encode_frame(self._incarnation, incarnation, self._make_heartbeat()))
        except zenoh.ZError as error:
            _log.debug("cannot send a heartbeat to %s: %s", name, error)
