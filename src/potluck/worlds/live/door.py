"""The coordinator's door: whoever knocks gets an answer, a Welcome or a Refusal with its reason."""

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

from potluck.worlds.live import greeting, keys
from potluck.worlds.live.greeting import PROTOCOL, Hello, Refusal, Welcome
from potluck.worlds.live.refusals import Refused
from potluck.worlds.live.wire import WireError

__all__ = ["Door", "Doorkeeper", "tell_time"]

Doorkeeper = Callable[[Hello], str | Refusal]  # what a device is to be called, or why it may not come in

_log = logging.getLogger("potluck")


class Door:
    """Asks the doorkeeper first, and then whether there is room (`admit`, by name and body).

    Tells who was `admitted`, and who was `refused`.
    """

    def __init__(
        self,
        welcome: Doorkeeper,
        admit: Callable[[str, str], Welcome | Refusal],
        is_cut: Callable[[str], bool],
        admitted: Callable[[Hello], None],
        refused: Refused,
    ) -> None:
        self._welcome = welcome
        self._admit = admit
        self._is_cut = is_cut
        self._admitted = admitted
        self._refused = refused
        self._loop = asyncio.get_running_loop()

    def open(self, session: zenoh.Session) -> None:
        self._session = session
        session.declare_queryable(keys.door(keys.ANY), Callback(self._knock, indirect=False))

    def answer(self, hello: Hello, asked_as: str) -> Welcome | Refusal:
        """Whether who asks under the key of `asked_as` is let in."""
        found = _refusal(hello, asked_as) or self._welcome(hello)
        return self._admit(found, hello.body) if isinstance(found, str) else found

    def _knock(self, query: zenoh.Query) -> None:
        """On one of Zenoh's threads."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so are we
            self._loop.call_soon_threadsafe(self._open_to, query)

    def _open_to(self, query: zenoh.Query) -> None:
        asked_as = str(query.key_expr).rpartition("/")[2]
        hello: Hello | None
        answer: Welcome | Refusal
        try:
            hello = greeting.decode_hello(query.payload.to_bytes() if query.payload is not None else b"")
        except WireError as error:
            hello, answer = None, Refusal(reason=str(error))
        else:
            if self._is_cut(hello.name):
                query.drop()  # type: ignore[no-untyped-call]
                return
            answer = self.answer(hello, asked_as)
        if isinstance(answer, Refusal):
            self._refused(unquote(asked_as) if hello is None else hello.name, self._where(query), answer.reason)
        elif hello is not None:
            self._admitted(hello)
        self._loop.run_in_executor(None, _reply, query, greeting.encode(answer))

    def _where(self, query: zenoh.Query) -> str:
        """The address that a question came from, as far as whoever asks lets us know."""
        said = query.source_info
        links = [link for link in self._session.info.links() if said is not None and link.zid == said.source_id.zid]
        return links[0].dst.partition("/")[2] if links else ""


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
