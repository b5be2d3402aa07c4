"""The coordinator's door: whoever knocks gets an answer, a Welcome or a Refusal with its reason."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
from collections.abc import Callable

import zenoh
from zenoh.handlers import Callback

from potluck.worlds.live import greeting, keys
from potluck.worlds.live.greeting import PROTOCOL, Hello, Refusal, Welcome
from potluck.worlds.live.wire import WireError

__all__ = ["Door", "Doorkeeper", "tell_time"]

Doorkeeper = Callable[[Hello], str | Refusal]  # what a device is to be called, or why it may not come in

_log = logging.getLogger("potluck")


class Door:
    """Asks the doorkeeper first, and then whether there is room (`admit`, by name and body); tells who came in."""

    def __init__(
        self,
        welcome: Doorkeeper,
        admit: Callable[[str, str], Welcome | Refusal],
        is_cut: Callable[[str], bool],
        admitted: Callable[[Hello], None] = lambda hello: None,
    ) -> None:
        self._welcome = welcome
        self._admit = admit
        self._is_cut = is_cut
        self._admitted = admitted
        self._loop = asyncio.get_running_loop()

    def open(self, session: zenoh.Session) -> None:
        session.declare_queryable(keys.door(keys.ANY), Callback(self._knock, indirect=False))

    def answer(self, hello: Hello, asked_as: str) -> Welcome | Refusal:
        """Whether who asks under the key of `asked_as` is let in."""
        found = _refusal(hello, asked_as) or self._welcome(hello)
        answer = self._admit(found, hello.body) if isinstance(found, str) else found
        if isinstance(answer, Refusal):
            _log.warning("refused %s: %s", hello.name, answer.reason)
        else:
            self._admitted(hello)
        return answer

    def _knock(self, query: zenoh.Query) -> None:
        """On one of Zenoh's threads."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so are we
            self._loop.call_soon_threadsafe(self._open_to, query)

    def _open_to(self, query: zenoh.Query) -> None:
        asked_as = str(query.key_expr).rpartition("/")[2]
        try:
            hello = greeting.decode_hello(query.payload.to_bytes() if query.payload is not None else b"")
        except WireError as error:
            _log.warning("refused somebody at the door: %s", error)
            answer: Welcome | Refusal = Refusal(reason=str(error))
        else:
            if self._is_cut(hello.name):
                query.drop()  # type: ignore[no-untyped-call]
                return
            answer = self.answer(hello, asked_as)
        self._loop.run_in_executor(None, _reply, query, greeting.encode(answer))


def _refusal(hello: Hello, asked_as: str) -> Refusal | None:
    if hello.protocol != PROTOCOL:
        side = "newer" if hello.protocol > PROTOCOL else "older"
        reason = f"{hello.name} speaks protocol {hello.protocol}, the coordinator {PROTOCOL}; it is {side}: "
        return Refusal(reason=reason + "install the same version of potluck on both")
    if keys.door(hello.name).rpartition("/")[2] != asked_as:
        return Refusal(reason=f"{hello.name!r} knocked as {asked_as!r}")
    return None


def tell_time(session: zenoh.Session, era: str) -> None:
    """Answer whoever asks for the time."""
    session.declare_queryable(keys.clock(era, keys.ANY), Callback(_tell_time, indirect=False))


def _tell_time(query: zenoh.Query) -> None:
    _reply(query, struct.pack("<d", time.monotonic()))


def _reply(query: zenoh.Query, data: bytes) -> None:
    try:
        query.reply(query.key_expr, data, express=True)
        query.drop()  # type: ignore[no-untyped-call]
    except zenoh.ZError as error:
        _log.debug("an answer did not get out: %s", error)
