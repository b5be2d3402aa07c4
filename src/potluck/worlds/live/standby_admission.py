"""Answers devices that ask a standby to join: not yet. A request is held for a moment, since the standby may lead soon.

The standby listens from the start, so that a wrong address or certificate shows before it is needed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time

import zenoh
from zenoh.handlers import Callback

from potluck.worlds.live import handshake_messages, key_expressions
from potluck.worlds.live.handshake_messages import JoinRefused
from potluck.worlds.live.zenoh_session import Endpoint, open_session

__all__ = ["StandbyAdmission"]

_HOLD_S = 1.0  # shorter than a device waits for an answer
_MAX_HELD = 1024
_REASON = "this coordinator is a standby and does not lead the run yet"

_log = logging.getLogger("potluck")


class StandbyAdmission:
    """Listens where the coordinator will listen once it leads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._session = open_session(endpoint, "router")
        self._held: list[tuple[float, zenoh.Query]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._session.declare_queryable(
            key_expressions.admission_key(key_expressions.ANY), Callback(self._on_query, indirect=False)
        )
        self._thread = threading.Thread(target=self._answer_held, name="potluck-standby", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; devices that wait for an answer ask again."""
        self._closed.set()
        self._thread.join(2 * _HOLD_S)
        with contextlib.suppress(zenoh.ZError):
            self._session.close()  # type: ignore[no-untyped-call]

    def _on_query(self, query: zenoh.Query) -> None:
        """Called from one of Zenoh's threads."""
        with self._lock:
            if len(self._held) < _MAX_HELD:
                self._held.append((time.monotonic() + _HOLD_S, query))

    def _answer_held(self) -> None:
        while not self._closed.wait(0.05):
            self._answer_until(time.monotonic())
        self._answer_until(float("inf"))

    def _answer_until(self, now: float) -> None:
        with self._lock:
            due = [query for until, query in self._held if until <= now]
            self._held = [(until, query) for until, query in self._held if until > now]
        for query in due:
            try:
                query.reply(
                    query.key_expr, handshake_messages.encode_handshake(JoinRefused(reason=_REASON, retry_s=0.0))
                )
                query.drop()  # type: ignore[no-untyped-call]
            except zenoh.ZError as error:
                _log.debug("cannot answer a device: %s", error)
