"""Tells devices that access control keeps out why, and reports them to the coordinator's log.

Zenoh drops the join request of a device whose certificate the run does not admit, so it gets no answer. It may ask for
the reason on another key, which every certificate of the fleet's authority may query. The name in that query is only a
claim, and the reply reveals nothing but a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import unquote

import zenoh
from zenoh.handlers import Callback

from potluck.text_escaping import escape_text
from potluck.worlds.live.callback_guard import guard_callback
from potluck.worlds.live.key_expressions import ANY, refusal_reason_key
from potluck.worlds.live.refusal_log import RefusalReporter
from potluck.worlds.live.security.access_control import unadmitted_reason
from potluck.worlds.live.security.tls_credentials import device_of_common_name

__all__ = ["query_refusal_reason", "report_unadmitted_links", "serve_refusal_reasons"]

_MAX_LENGTH = 1000  # characters of a reason
_NO_REASON = "the coordinator knows this name, but not with this certificate; see its log"


def serve_refusal_reasons(session: zenoh.Session, refusal_reason: Callable[[str], str | None]) -> None:
    """Answer queries for the reason of a refusal until the session is closed."""

    def answer_query(query: zenoh.Query) -> None:
        name = unquote(str(query.key_expr).rpartition("/")[2])
        query.reply(query.key_expr, (refusal_reason(name) or _NO_REASON)[:_MAX_LENGTH])

    session.declare_queryable(refusal_reason_key(ANY), Callback(guard_callback(answer_query), indirect=True))


def report_unadmitted_links(
    session: zenoh.Session, common_names: Mapping[str, str], report_refusal: RefusalReporter
) -> None:
    """Report every link whose certificate the run does not admit until the session is closed."""

    def on_link_event(event: zenoh.LinkEvent) -> None:
        common_name = event.link.auth_identifier
        if event.kind != zenoh.SampleKind.PUT or not common_name:
            return
        reason = unadmitted_reason(common_name, common_names)
        if reason is not None:
            report_refusal(device_of_common_name(common_name), event.link.dst.partition("/")[2], reason)

    session.info.declare_link_events_listener(Callback(guard_callback(on_link_event), indirect=True), history=True)


def query_refusal_reason(session: zenoh.Session, name: str, timeout_s: float) -> str | None:
    """Why the coordinator does not answer `name`; None if it does not reply."""
    for reply in session.get(refusal_reason_key(name), timeout=timeout_s):
        if reply.ok is not None:
            return escape_text(reply.ok.payload.to_bytes()[: 4 * _MAX_LENGTH].decode(errors="replace"), _MAX_LENGTH)
    return None
