"""A device's way in: connect, knock, and wait as long as it takes to be let in."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
import time

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

__all__ = ["JoinRefusedError", "join_run", "query_run_clock"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
_LONGEST_REFUSED_S = 60.0
_ANSWER_S = 3.0
_TO_RESTART = "; it goes on asking. For a run that is not the one it was in: start it again, with that run's token"

_log = logging.getLogger("potluck")


class JoinRefusedError(UserError):
    """The coordinator does not let this device in; the message is its reason."""


async def join_run(
    place: Endpoint, hello: JoinRequest, patience_s: float | None, *, persist: bool = False
) -> tuple[zenoh.Session, JoinAccepted]:
    """Connect and knock until we are let in; to `persist` is to ask again, now and then, even where we are refused."""
    since, pause, reason = time.monotonic(), _FIRST_PAUSE_S, ""
    while True:
        answer = await _attempt_join(place, hello)
        if not isinstance(answer, JoinRefused):
            return answer
        if answer.retry_s is None and not persist:
            raise JoinRefusedError(f"{hello.name} was refused: {answer.reason}")
        if patience_s is not None and time.monotonic() - since > patience_s:
            raise EndpointError(f"{answer.reason}, for {patience_s:g} s; is `potluck serve` running there?")
        if answer.reason != reason:
            reason = answer.reason
            _log.info("%s waits: %s%s", hello.name, reason, _TO_RESTART if answer.retry_s is None else "")
        await asyncio.sleep(max(answer.retry_s or 0.0, pause * random.uniform(0.5, 1.0)))
        pause = min(1.6 * pause, _LONGEST_PAUSE_S if answer.retry_s is not None else _LONGEST_REFUSED_S)


async def _attempt_join(place: Endpoint, hello: JoinRequest) -> tuple[zenoh.Session, JoinAccepted] | JoinRefused:
    """One attempt; a session is left open only if we were let in."""
    try:
        session = await open_session_in_thread(msgspec.structs.replace(place, listen=(), direct=False), "client")
    except EndpointError as error:
        why = await asyncio.to_thread(diagnose_connection, place.connect[0], place.tls) if place.connect else None
        return JoinRefused(reason=f"{error}; {why}" if why else str(error), retry_s=0.0)
    try:
        answer = await asyncio.to_thread(
            _request_admission, session, hello, min(_ANSWER_S, place.lease), place.tls is not None
        )
    except BaseException:
        await close_session(session)
        raise
    if isinstance(answer, JoinAccepted) and not (place.direct and answer.direct):
        return session, answer
    await close_session(session)
    return await _reopen_as_peer(place, answer) if isinstance(answer, JoinAccepted) else answer


async def _reopen_as_peer(place: Endpoint, welcome: JoinAccepted) -> tuple[zenoh.Session, JoinAccepted] | JoinRefused:
    """Stay as one that others may call: only now we know whom of them to listen to, and on which certificate."""
    rules = device_access(welcome.name, welcome.bears, welcome.era) if place.tls is not None else None
    try:
        return await open_session_in_thread(msgspec.structs.replace(place, access_control=rules), "peer"), welcome
    except EndpointError as error:
        return JoinRefused(reason=str(error), retry_s=1.0)


def _request_admission(
    session: zenoh.Session, hello: JoinRequest, seconds: float, shut: bool
) -> JoinAccepted | JoinRefused:
    """Knock; where certificates may keep the door shut to us, ask in the lobby why nobody answers."""
    told = _query_first_reply(
        session, key_expressions.admission_key(hello.name), handshake_messages.encode_handshake(hello), seconds
    )
    if told is None:
        why = query_refusal_reason(session, hello.name, seconds) if shut else None
        return JoinRefused(reason=why or "nobody answers at the door", retry_s=0.0)  # it may only be busy: ask again
    try:
        return handshake_messages.decode_join_answer(told)
    except WireError as error:
        return JoinRefused(reason=f"the coordinator's answer is not understood ({error})", retry_s=1.0)


def _query_first_reply(session: zenoh.Session, key: str, payload: bytes, seconds: float) -> bytes | None:
    """The first answer, if there is one in time."""
    try:
        with session.declare_querier(key, timeout=seconds) as asking:
            for reply in asking.get(payload=payload, source_info=zenoh.SourceInfo(asking.id, 0)):
                if reply.ok is not None:
                    return bytes(reply.ok.payload.to_bytes())
    except zenoh.ZError as error:
        _log.debug("no answer at %s: %s", key, error)
    return None


def query_run_clock(session: zenoh.Session, welcome: JoinAccepted) -> float | None:
    told = _query_first_reply(session, key_expressions.clock_key(welcome.era, welcome.name), b"", _ANSWER_S)
    return float(struct.unpack("<d", told)[0]) if told is not None and len(told) == 8 else None
