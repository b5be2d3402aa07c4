"""Where a device that is not let in learns why, and the coordinator's log learns who it was.

The door is shut to whom the run does not admit, so its question never gets there. Any certificate of our authority may
ask in the lobby. What it says about its name there is only a claim, and the answer gives nothing but a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import unquote

import zenoh
from zenoh.handlers import Callback

from potluck.worlds.live.key_expressions import ANY
from potluck.worlds.live.refusal_log import Refused
from potluck.worlds.live.security.access_control import refusal_reason_key, unadmitted_reason
from potluck.worlds.live.security.tls_credentials import device_of_common_name

__all__ = ["query_refusal_reason", "report_unadmitted_links", "serve_refusal_reasons"]

_LONGEST = 1000  # letters of a reason
_NO_REASON = "the coordinator knows this name, but not with this certificate; see its log"


def serve_refusal_reasons(session: zenoh.Session, stays_out: Callable[[str], str | None]) -> None:
    """Answer everyone who asks, for as long as the session is open."""

    def answer_query(query: zenoh.Query) -> None:
        name = unquote(str(query.key_expr).rpartition("/")[2])
        query.reply(query.key_expr, (stays_out(name) or _NO_REASON)[:_LONGEST])

    session.declare_queryable(refusal_reason_key(ANY), Callback(answer_query, indirect=True))


def report_unadmitted_links(session: zenoh.Session, admitted: Mapping[str, str], refused: Refused) -> None:
    """Tell of every link whose certificate the run does not admit, for as long as the session is open."""

    def on_link_event(event: zenoh.LinkEvent) -> None:
        name = event.link.auth_identifier
        if event.kind == zenoh.SampleKind.PUT and name and (problem := unadmitted_reason(name, admitted)) is not None:
            refused(device_of_common_name(name), event.link.dst.partition("/")[2], problem)

    session.info.declare_link_events_listener(Callback(on_link_event, indirect=True), history=True)


def query_refusal_reason(session: zenoh.Session, name: str, seconds: float) -> str | None:
    """Why nobody opens the door to `name`; None if nobody says."""
    for reply in session.get(refusal_reason_key(name), timeout=seconds):
        if reply.ok is not None:
            return reply.ok.payload.to_bytes()[: 4 * _LONGEST].decode(errors="replace")
    return None
