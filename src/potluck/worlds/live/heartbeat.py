"""A thread that says at a steady pace that we are here, whatever the event loop and the processor are busy with."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

import zenoh

from potluck.worlds.live.control_messages import ControlMessage
from potluck.worlds.live.wire_format import encode_frame
from potluck.worlds.live.zenoh_transport import ZenohTransport

__all__ = ["BEATS_PER_LEASE", "HeartbeatSender"]

BEATS_PER_LEASE = 5

_log = logging.getLogger("potluck")


class HeartbeatSender:
    """Beats until it is stopped."""

    def __init__(self, post: ZenohTransport, life: int, lease: float, beat: Callable[[], ControlMessage]) -> None:
        self._transport = post
        self._incarnation = life
        self._interval = lease / BEATS_PER_LEASE
        self._make_heartbeat = beat
        self._stopped = threading.Event()
        self._recipients: Mapping[str, int] = {}
        self._is_cut: Callable[[str], bool] = lambda name: False
        self._thread = threading.Thread(target=self._send_periodically, name=f"potluck-heart-{post.name}", daemon=True)

    def start(self, is_cut: Callable[[str], bool]) -> None:
        self._is_cut = is_cut
        self._thread.start()

    def set_recipients(self, lives: Mapping[str, int]) -> None:
        """From now on for these; a new mapping each time, since the thread reads it."""
        self._recipients = lives

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(2 * self._interval + 5.0)

    def _send_periodically(self) -> None:
        while not self._stopped.wait(self._interval):
            for name, life in self._recipients.items():
                if not self._is_cut(name):
                    self._send_heartbeat(name, life)

    def _send_heartbeat(self, name: str, life: int) -> None:
        try:
            self._transport.send_control_now(name, encode_frame(self._incarnation, life, self._make_heartbeat()))
        except zenoh.ZError as error:
            _log.debug("a heartbeat for %s did not get out: %s", name, error)
