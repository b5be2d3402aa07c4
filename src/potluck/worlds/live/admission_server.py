"""Answers join requests on the coordinator: every request gets a JoinAccepted, or a JoinRefused with its reason."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
from collections.abc import Callable
from urllib.parse import unquote

import zenoh
from zenoh.handlers import Callback

from potluck.text_escaping import name_refusal
from potluck.worlds.live import handshake_messages, key_expressions
from potluck.worlds.live.callback_guard import guard_callback
from potluck.worlds.live.handshake_messages import PROTOCOL, JoinAccepted, JoinRefused, JoinRequest
from potluck.worlds.live.rate_limits import RateLimit, RateLimiter
from potluck.worlds.live.refusal_log import RefusalReporter
from potluck.worlds.live.wire_format import WireError

__all__ = ["AdmissionCheck", "AdmissionServer", "serve_clock"]

AdmissionCheck = Callable[[JoinRequest], str | JoinRefused]  # the device's name, or why it may not join

_REQUESTS = RateLimit(per_s=20.0, burst=40.0)  # to join, under one name
_ALL_REQUESTS = RateLimit(per_s=500.0, burst=1000.0)
_CLOCK_QUERIES = RateLimit(per_s=50.0, burst=100.0)  # of one device

_log = logging.getLogger("potluck")


class AdmissionServer:
    """Validates requests, asks `check_admission`, then `admit_device` (name, process secret) for an incarnation."""

    def __init__(
        self,
        check_admission: AdmissionCheck,
        admit_device: Callable[[str, str], JoinAccepted | JoinRefused],
        is_cut: Callable[[str], bool],
        on_admitted: Callable[[JoinRequest], None],
        on_refused: RefusalReporter,
    ) -> None:
        self._check_admission = check_admission
        self._admit_device = admit_device
        self._is_cut = is_cut
        self._on_admitted = on_admitted
        self._on_refused = on_refused
        self._handle_guarded = guard_callback(self._handle_query, self._refuse_query)
        self._loop = asyncio.get_running_loop()
        self._requests, self._all_requests = RateLimiter(_REQUESTS), RateLimiter(_ALL_REQUESTS)

    def serve_requests(self, session: zenoh.Session) -> None:
        self._session = session
        session.declare_queryable(
            key_expressions.admission_key(key_expressions.ANY),
            Callback(guard_callback(self._on_query), indirect=False),
        )

    def _on_query(self, query: zenoh.Query) -> None:
        """Called from one of Zenoh's threads."""
        asked_as, now = str(query.key_expr).rpartition("/")[2], time.monotonic()
        if not (self._requests.take(asked_as, now) and self._all_requests.take("", now)):
            query.drop()  # type: ignore[no-untyped-call]
            return
        with contextlib.suppress(RuntimeError):  # the event loop is closed: the run has ended
            self._loop.call_soon_threadsafe(self._handle_guarded, query)

    def _refuse_query(self, query: zenoh.Query, reason: str) -> None:
        """The request could not even be checked."""
        self._on_refused(unquote(str(query.key_expr).rpartition("/")[2]), "", reason)
        answer = handshake_messages.encode_handshake(JoinRefused(reason=reason))
        self._loop.run_in_executor(None, _send_reply, query, answer)

    def _handle_query(self, query: zenoh.Query) -> None:
        asked_as = str(query.key_expr).rpartition("/")[2]
        request: JoinRequest | None
        answer: JoinAccepted | JoinRefused
        try:
            request = handshake_messages.decode_join_request(
                query.payload.to_bytes() if query.payload is not None else b""
            )
        except WireError as error:
            request, answer = None, JoinRefused(reason=str(error))
        else:
            if self._is_cut(request.name):
                query.drop()  # type: ignore[no-untyped-call]
                return
            verdict = _validate_request(request, asked_as) or self._check_admission(request)
            answer = self._admit_device(verdict, request.body) if isinstance(verdict, str) else verdict
        if isinstance(answer, JoinRefused):
            self._on_refused(
                unquote(asked_as) if request is None else request.name, self._source_address(query), answer.reason
            )
        elif request is not None:
            self._on_admitted(request)
        self._loop.run_in_executor(None, _send_reply, query, handshake_messages.encode_handshake(answer))

    def _source_address(self, query: zenoh.Query) -> str:
        """The address that a query came from; empty if the sender does not say which session it is."""
        source = query.source_info
        links = [link for link in self._session.info.links() if source is not None and link.zid == source.source_id.zid]
        return links[0].dst.partition("/")[2] if links else ""


def _validate_request(request: JoinRequest, asked_as: str) -> JoinRefused | None:
    if (reason := name_refusal(request.name)) is not None:
        return JoinRefused(reason=reason)
    if request.protocol != PROTOCOL:
        age = "newer" if request.protocol > PROTOCOL else "older"
        reason = f"{request.name} speaks protocol {request.protocol}, which is {age} than the coordinator's {PROTOCOL}"
        return JoinRefused(reason=f"{reason}; install the same version of potluck on both")
    if key_expressions.admission_key(request.name).rpartition("/")[2] != asked_as:
        return JoinRefused(reason=f"the request of {request.name!r} was sent under the name {asked_as!r}")
    return None


def serve_clock(session: zenoh.Session, era: str, on_asked: Callable[[str, str], None]) -> None:
    """Answer devices that ask for the coordinator's time; `on_asked` is told their names and Zenoh sessions."""
    limiter = RateLimiter(_CLOCK_QUERIES)

    def reply_time(query: zenoh.Query) -> None:
        name = unquote(str(query.key_expr).rpartition("/")[2])
        if not limiter.take(name, time.monotonic()):
            query.drop()  # type: ignore[no-untyped-call]
            return
        if query.source_info is not None:
            on_asked(name, str(query.source_info.source_id.zid))
        _send_reply(query, struct.pack("<d", time.monotonic()))

    session.declare_queryable(
        key_expressions.clock_key(era, key_expressions.ANY), Callback(guard_callback(reply_time), indirect=False)
    )


def _send_reply(query: zenoh.Query, data: bytes) -> None:
    try:
        query.reply(query.key_expr, data, express=True)
        query.drop()  # type: ignore[no-untyped-call]
    except zenoh.ZError as error:
        _log.debug("cannot send a reply: %s", error)
