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
from potluck.worlds.live import greeting, keys
from potluck.worlds.live.greeting import Hello, Refusal, Welcome
from potluck.worlds.live.security.access import device_config
from potluck.worlds.live.security.lobby import ask_why
from potluck.worlds.live.security.probe import why_not
from potluck.worlds.live.session import Place, PlaceError, close_session, open_session_aside
from potluck.worlds.live.wire import WireError

__all__ = ["RefusedError", "ask_time", "come_in"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
_LONGEST_REFUSED_S = 60.0
_ANSWER_S = 3.0
_TO_RESTART = "; it goes on asking. For a run that is not the one it was in: start it again, with that run's token"

_log = logging.getLogger("potluck")


class RefusedError(UserError):
    """The coordinator does not let this device in; the message is its reason."""


async def come_in(
    place: Place, hello: Hello, patience_s: float | None, *, persist: bool = False
) -> tuple[zenoh.Session, Welcome]:
    """Connect and knock until we are let in; to `persist` is to ask again, now and then, even where we are refused."""
    since, pause, reason = time.monotonic(), _FIRST_PAUSE_S, ""
    while True:
        answer = await _knock(place, hello)
        if not isinstance(answer, Refusal):
            return answer
        if answer.retry_s is None and not persist:
            raise RefusedError(f"{hello.name} was refused: {answer.reason}")
        if patience_s is not None and time.monotonic() - since > patience_s:
            raise PlaceError(f"{answer.reason}, for {patience_s:g} s; is `potluck serve` running there?")
        if answer.reason != reason:
            reason = answer.reason
            _log.info("%s waits: %s%s", hello.name, reason, _TO_RESTART if answer.retry_s is None else "")
        await asyncio.sleep(max(answer.retry_s or 0.0, pause * random.uniform(0.5, 1.0)))
        pause = min(1.6 * pause, _LONGEST_PAUSE_S if answer.retry_s is not None else _LONGEST_REFUSED_S)


async def _knock(place: Place, hello: Hello) -> tuple[zenoh.Session, Welcome] | Refusal:
    """One attempt; a session is left open only if we were let in."""
    try:
        session = await open_session_aside(msgspec.structs.replace(place, listen=(), direct=False), "client")
    except PlaceError as error:
        why = await asyncio.to_thread(why_not, place.connect[0], place.tls) if place.connect else None
        return Refusal(reason=f"{error}; {why}" if why else str(error), retry_s=0.0)
    try:
        answer = await asyncio.to_thread(_ask, session, hello, min(_ANSWER_S, place.lease), place.tls is not None)
    except BaseException:
        await close_session(session)
        raise
    if isinstance(answer, Welcome) and not (place.direct and answer.direct):
        return session, answer
    await close_session(session)
    return await _as_peer(place, answer) if isinstance(answer, Welcome) else answer


async def _as_peer(place: Place, welcome: Welcome) -> tuple[zenoh.Session, Welcome] | Refusal:
    """Stay as one that others may call: only now we know whom of them to listen to, and on which certificate."""
    rules = device_config(welcome.name, welcome.bears, welcome.era) if place.tls is not None else None
    try:
        return await open_session_aside(msgspec.structs.replace(place, access=rules), "peer"), welcome
    except PlaceError as error:
        return Refusal(reason=str(error), retry_s=1.0)


def _ask(session: zenoh.Session, hello: Hello, seconds: float, shut: bool) -> Welcome | Refusal:
    """Knock; where certificates may keep the door shut to us, ask in the lobby why nobody answers."""
    told = _query(session, keys.door(hello.name), greeting.encode(hello), seconds)
    if told is None:
        why = ask_why(session, hello.name, seconds) if shut else None
        return Refusal(reason=why or "nobody answers at the door", retry_s=0.0)  # it may only be busy: ask again
    try:
        return greeting.decode_answer(told)
    except WireError as error:
        return Refusal(reason=f"the coordinator's answer is not understood ({error})", retry_s=1.0)


def _query(session: zenoh.Session, key: str, payload: bytes, seconds: float) -> bytes | None:
    """The first answer, if there is one in time."""
    try:
        with session.declare_querier(key, timeout=seconds) as asking:
            for reply in asking.get(payload=payload, source_info=zenoh.SourceInfo(asking.id, 0)):
                if reply.ok is not None:
                    return bytes(reply.ok.payload.to_bytes())
    except zenoh.ZError as error:
        _log.debug("no answer at %s: %s", key, error)
    return None


def ask_time(session: zenoh.Session, welcome: Welcome) -> float | None:
    told = _query(session, keys.clock(welcome.era, welcome.name), b"", _ANSWER_S)
    return float(struct.unpack("<d", told)[0]) if told is not None and len(told) == 8 else None
