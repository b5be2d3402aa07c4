"""Where a device that is not let in learns why, and the coordinator's log learns who it was.

The door is shut to whom the run does not admit, so its question never gets there. Any certificate of our authority may
ask in the lobby. What it says about its name there is only a claim, and the answer gives nothing but a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import unquote

import zenoh
from zenoh.handlers import Callback

from potluck.worlds.live.keys import ANY
from potluck.worlds.live.refusals import Refused
from potluck.worlds.live.security.access import lobby, stranger
from potluck.worlds.live.security.certs import device_of

__all__ = ["ask_why", "explain", "note_strangers"]

_LONGEST = 1000  # letters of a reason
_NO_REASON = "the coordinator knows this name, but not with this certificate; see its log"


def explain(session: zenoh.Session, stays_out: Callable[[str], str | None]) -> None:
    """Answer everyone who asks, for as long as the session is open."""

    def answer(query: zenoh.Query) -> None:
        name = unquote(str(query.key_expr).rpartition("/")[2])
        query.reply(query.key_expr, (stays_out(name) or _NO_REASON)[:_LONGEST])

    session.declare_queryable(lobby(ANY), Callback(answer, indirect=True))


def note_strangers(session: zenoh.Session, admitted: Mapping[str, str], refused: Refused) -> None:
    """Tell of every link whose certificate the run does not admit, for as long as the session is open."""

    def note(event: zenoh.LinkEvent) -> None:
        name = event.link.auth_identifier
        if event.kind == zenoh.SampleKind.PUT and name and (problem := stranger(name, admitted)) is not None:
            refused(device_of(name), event.link.dst.partition("/")[2], problem)

    session.info.declare_link_events_listener(Callback(note, indirect=True), history=True)


def ask_why(session: zenoh.Session, name: str, seconds: float) -> str | None:
    """Why nobody opens the door to `name`; None if nobody says."""
    for reply in session.get(lobby(name), timeout=seconds):
        if reply.ok is not None:
            return reply.ok.payload.to_bytes()[: 4 * _LONGEST].decode(errors="replace")
    return None
