"""The device's side of the handshake: connect, send a join request, and retry until it is accepted."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
import time
from collections.abc import Sequence

import msgspec
import zenoh

from potluck.errors import UserError
from potluck.worlds.live import handshake_messages, key_expressions
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRefused, JoinRequest
from potluck.worlds.live.security.access_control import device_access
from potluck.worlds.live.security.connection_diagnosis import diagnose_connection
from potluck.worlds.live.security.refusal_reasons import query_refusal_reason
from potluck.worlds.live.wire_format import WireError
from potluck.worlds.live.zenoh_session import Endpoint, EndpointError, close_session, open_session_in_thread

__all__ = ["JoinRefusedError", "KnownCoordinators", "join_run", "query_run_clock"]

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 10.0
_MAX_PAUSE_STANDBY_S = 0.5  # where a standby may take over at any moment
_MAX_ADDRESSES = 8
_MAX_PAUSE_REFUSED_S = 60.0
_ANSWER_TIMEOUT_S = 3.0
_KEEPS_ASKING = "; it keeps asking. To join another run, start the device again with that run's token"

_log = logging.getLogger("potluck")


class JoinRefusedError(UserError):
    """The coordinator refused this device; the message is its reason."""


_Asking = asyncio.Task[tuple[zenoh.Session, JoinAccepted]]


class KnownCoordinators:
    """Where the coordinators of a run listen, as far as a device knows, and the highest term among its leaders."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._given = self.addresses = tuple(addresses)
        self._run, self._term = "", 0
        self._abandoned: set[_Asking] = set()

    def add_addresses(self, announced: Sequence[str]) -> None:
        """Look at these addresses, too; the oldest are forgotten where there are too many."""
        protocol = self._given[0].partition("/")[0]
        usable = [address for address in announced if address.startswith(f"{protocol}/")]
        self.addresses = tuple(dict.fromkeys((*self.addresses[:1], *usable, *self.addresses[1:])))[:_MAX_ADDRESSES]

    def forget_run(self) -> None:
        """The run is over; another one may be led anywhere and in any term."""
        self.addresses, self._run, self._term = self._given, "", 0

    def abandon_requests(self, asking: Sequence[_Asking]) -> None:
        """Cancel requests without waiting for them: it may take seconds until a connection attempt ends."""
        for task in asking:
            task.cancel()
            self._abandoned.add(task)
            task.add_done_callback(self._abandoned.discard)

    def check_term(self, accepted: JoinAccepted) -> JoinRefused | None:
        """Why this coordinator is not the leader; None if it may be."""
        if accepted.run == self._run and accepted.term < self._term:
            reason = f"the coordinator there led in term {accepted.term}, but term {self._term} has begun"
            return JoinRefused(reason=reason, retry_s=_FIRST_PAUSE_S)
        self._run, self._term = accepted.run, accepted.term
        return None


async def join_run(
    endpoint: Endpoint,
    request: JoinRequest,
    timeout_s: float | None,
    known: KnownCoordinators,
    *,
    persist: bool = False,
) -> tuple[zenoh.Session, JoinAccepted]:
    """Ask all known coordinators until one accepts the device; with `persist`, even after a refusal."""
    asking = [
        asyncio.create_task(
            _ask_until_accepted(
                msgspec.structs.replace(endpoint, connect=(address,)), request, timeout_s, known, persist=persist
            )
        )
        for address in known.addresses
    ]
    try:
        return await _first_accepted(asking)
    finally:
        known.abandon_requests(asking)


async def _first_accepted(asking: Sequence[_Asking]) -> tuple[zenoh.Session, JoinAccepted]:
    """The first answer; that a coordinator cannot be reached matters only if none can."""
    pending = set(asking)
    while True:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        accepted = [task for task in done if task.exception() is None]
        for other in accepted[1:]:
            await close_session(other.result()[0])
        if accepted:
            return accepted[0].result()
        errors = [error for task in done if (error := task.exception()) is not None]
        for error in errors:
            if not (isinstance(error, EndpointError) and pending):
                raise error


async def _ask_until_accepted(
    endpoint: Endpoint, request: JoinRequest, timeout_s: float | None, known: KnownCoordinators, *, persist: bool
) -> tuple[zenoh.Session, JoinAccepted]:
    started, pause, reason = time.monotonic(), _FIRST_PAUSE_S, ""
    longest = _MAX_PAUSE_S if len(known.addresses) == 1 else _MAX_PAUSE_STANDBY_S
    while True:
        answer = await _attempt_join(endpoint, request, known)
        if not isinstance(answer, JoinRefused):
            return answer
        if answer.retry_s is None and not persist:
            raise JoinRefusedError(f"{request.name} was refused: {answer.reason}")
        if timeout_s is not None and time.monotonic() - started > timeout_s:
            raise EndpointError(f"{answer.reason}; gave up after {timeout_s:g} s: is `potluck serve` running there?")
        if answer.reason != reason:
            reason = answer.reason
            _log.info("%s waits: %s%s", request.name, reason, _KEEPS_ASKING if answer.retry_s is None else "")
        await asyncio.sleep(max(answer.retry_s or 0.0, pause * random.uniform(0.5, 1.0)))
        pause = min(1.6 * pause, longest if answer.retry_s is not None else _MAX_PAUSE_REFUSED_S)


async def _attempt_join(
    endpoint: Endpoint, request: JoinRequest, known: KnownCoordinators
) -> tuple[zenoh.Session, JoinAccepted] | JoinRefused:
    """Try once; the session stays open only if the device was accepted."""
    try:
        session = await open_session_in_thread(msgspec.structs.replace(endpoint, listen=(), direct=False), "client")
    except EndpointError as error:
        diagnosis = (
            await asyncio.to_thread(diagnose_connection, endpoint.connect[0], endpoint.tls)
            if endpoint.connect
            else None
        )
        return JoinRefused(reason=f"{error}; {diagnosis}" if diagnosis else str(error), retry_s=0.0)
    try:
        answer = await asyncio.to_thread(
            _request_admission, session, request, min(_ANSWER_TIMEOUT_S, endpoint.lease), endpoint.tls is not None
        )
    except BaseException:
        await close_session(session)
        raise
    if isinstance(answer, JoinAccepted):
        answer = known.check_term(answer) or answer
    if isinstance(answer, JoinAccepted) and not (endpoint.direct and answer.direct):
        return session, answer
    await close_session(session)
    return await _reopen_as_peer(endpoint, answer) if isinstance(answer, JoinAccepted) else answer


async def _reopen_as_peer(
    endpoint: Endpoint, accepted: JoinAccepted
) -> tuple[zenoh.Session, JoinAccepted] | JoinRefused:
    """Open a session that accepts other devices: only the answer says which, and with which certificates."""
    access_rules = device_access(accepted.name, accepted.bears, accepted.era) if endpoint.tls is not None else None
    try:
        return await open_session_in_thread(
            msgspec.structs.replace(endpoint, access_control=access_rules), "peer"
        ), accepted
    except EndpointError as error:
        return JoinRefused(reason=str(error), retry_s=1.0)


def _request_admission(
    session: zenoh.Session, request: JoinRequest, seconds: float, certified: bool
) -> JoinAccepted | JoinRefused:
    """Send the request; if nobody answers and access control may be the cause (`certified`), ask for the reason."""
    answer_bytes = _query_first_reply(
        session, key_expressions.admission_key(request.name), handshake_messages.encode_handshake(request), seconds
    )
    if answer_bytes is None:
        reason = query_refusal_reason(session, request.name, seconds) if certified else None
        # Retry in any case: the coordinator may only be busy.
        return JoinRefused(reason=reason or "the coordinator does not answer the join request", retry_s=0.0)
    try:
        return handshake_messages.decode_join_answer(answer_bytes)
    except WireError as error:
        return JoinRefused(reason=f"the coordinator's answer cannot be decoded ({error})", retry_s=1.0)


def _query_first_reply(session: zenoh.Session, key: str, payload: bytes, seconds: float) -> bytes | None:
    """The first reply; None if there is none within `seconds`."""
    try:
        with session.declare_querier(key, timeout=seconds) as querier:
            for reply in querier.get(payload=payload, source_info=zenoh.SourceInfo(querier.id, 0)):
                if reply.ok is not None:
                    return bytes(reply.ok.payload.to_bytes())
    except zenoh.ZError as error:
        _log.debug("no reply on %s: %s", key, error)
    return None


def query_run_clock(session: zenoh.Session, accepted: JoinAccepted) -> float | None:
    answer_bytes = _query_first_reply(
        session, key_expressions.clock_key(accepted.era, accepted.name), b"", _ANSWER_TIMEOUT_S
    )
    return float(struct.unpack("<d", answer_bytes)[0]) if answer_bytes is not None and len(answer_bytes) == 8 else None
