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

from potluck.worlds.live import handshake_messages, key_expressions
from potluck.worlds.live.handshake_messages import PROTOCOL, JoinAccepted, JoinRefused, JoinRequest
from potluck.worlds.live.refusal_log import Refused
from potluck.worlds.live.wire_format import WireError

__all__ = ["AdmissionServer", "Doorkeeper", "serve_clock"]

Doorkeeper = Callable[[JoinRequest], str | JoinRefused]  # what a device is to be called, or why it may not come in

_log = logging.getLogger("potluck")


class AdmissionServer:
    """Asks the doorkeeper first, and then whether there is room (`admit`, by name and body).

    Tells who was `admitted`, and who was `refused`.
    """

    def __init__(
        self,
        welcome: Doorkeeper,
        admit: Callable[[str, str], JoinAccepted | JoinRefused],
        is_cut: Callable[[str], bool],
        admitted: Callable[[JoinRequest], None],
        refused: Refused,
    ) -> None:
        self._check_admission = welcome
        self._admit_device = admit
        self._is_cut = is_cut
        self._on_admitted = admitted
        self._on_refused = refused
        self._loop = asyncio.get_running_loop()

    def serve_requests(self, session: zenoh.Session) -> None:
        self._session = session
        session.declare_queryable(
            key_expressions.admission_key(key_expressions.ANY), Callback(self._on_query, indirect=False)
        )

    def answer_request(self, hello: JoinRequest, asked_as: str) -> JoinAccepted | JoinRefused:
        """Whether who asks under the key of `asked_as` is let in."""
        found = _validate_request(hello, asked_as) or self._check_admission(hello)
        return self._admit_device(found, hello.body) if isinstance(found, str) else found

    def _on_query(self, query: zenoh.Query) -> None:
        """On one of Zenoh's threads."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so are we
            self._loop.call_soon_threadsafe(self._handle_query, query)

    def _handle_query(self, query: zenoh.Query) -> None:
        asked_as = str(query.key_expr).rpartition("/")[2]
        hello: JoinRequest | None
        answer: JoinAccepted | JoinRefused
        try:
            hello = handshake_messages.decode_join_request(
                query.payload.to_bytes() if query.payload is not None else b""
            )
        except WireError as error:
            hello, answer = None, JoinRefused(reason=str(error))
        else:
            if self._is_cut(hello.name):
                query.drop()  # type: ignore[no-untyped-call]
                return
            answer = self.answer_request(hello, asked_as)
        if isinstance(answer, JoinRefused):
            self._on_refused(
                unquote(asked_as) if hello is None else hello.name, self._source_address(query), answer.reason
            )
        elif hello is not None:
            self._on_admitted(hello)
        self._loop.run_in_executor(None, _send_reply, query, handshake_messages.encode_handshake(answer))

    def _source_address(self, query: zenoh.Query) -> str:
        """The address that a question came from, as far as whoever asks lets us know."""
        said = query.source_info
        links = [link for link in self._session.info.links() if said is not None and link.zid == said.source_id.zid]
        return links[0].dst.partition("/")[2] if links else ""


def _validate_request(hello: JoinRequest, asked_as: str) -> JoinRefused | None:
    if hello.protocol != PROTOCOL:
        side = "newer" if hello.protocol > PROTOCOL else "older"
        reason = f"{hello.name} speaks protocol {hello.protocol}, the coordinator {PROTOCOL}; it is {side}: "
        return JoinRefused(reason=reason + "install the same version of potluck on both")
    if key_expressions.admission_key(hello.name).rpartition("/")[2] != asked_as:
        return JoinRefused(reason=f"{hello.name!r} knocked as {asked_as!r}")
    return None


def serve_clock(session: zenoh.Session, era: str) -> None:
    """Answer whoever asks for the time."""
    session.declare_queryable(
        key_expressions.clock_key(era, key_expressions.ANY), Callback(_reply_time, indirect=False)
    )


def _reply_time(query: zenoh.Query) -> None:
    _send_reply(query, struct.pack("<d", time.monotonic()))


def _send_reply(query: zenoh.Query, data: bytes) -> None:
    try:
        query.reply(query.key_expr, data, express=True)
        query.drop()  # type: ignore[no-untyped-call]
    except zenoh.ZError as error:
        _log.debug("an answer did not get out: %s", error)
