"""A Zenoh session from a place: where to listen, whom to call, and how long silence is taken for life.

The coordinator is a Zenoh router, so that two devices that cannot reach each other still can through it. A device is
a client of it, or, where devices speak to each other, a peer that can be called itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any

import msgspec
import zenoh

from potluck.errors import UserError
from potluck.worlds.live.security.tls_credentials import TlsCredentials
from potluck.worlds.live.shared_memory import clear_at_exit

__all__ = ["Endpoint", "EndpointError", "close_session", "open_session", "open_session_in_thread"]

_LONGEST_MESSAGE = 17 << 20  # a chunk and its head; Zenoh drops what is longer before it is put together

_log = logging.getLogger("potluck")


class EndpointError(UserError):
    """An address that cannot be listened on or reached."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node is on the network."""

    listen: tuple[str, ...] = ()  # locators such as tcp/0.0.0.0:7447 or tls/0.0.0.0:7447
    connect: tuple[str, ...] = ()
    tls: TlsCredentials | None = None
    access_control: dict[str, Any] | None = None  # Zenoh's `access_control`
    lease: float = 5.0  # until a silent connection is given up
    direct: bool = False  # a device that others may call, and that calls them
    discover: bool = False  # a coordinator that can be found by multicast
    shared_memory: bool = False  # between processes of one host; never where a link is shaped or timed
    connect_timeout_s: float = 3.0  # how long one attempt to connect may take


def open_session(place: Endpoint, mode: str, longest_bytes: int = _LONGEST_MESSAGE) -> zenoh.Session:
    """Open a session as "router" (the coordinator), "peer" or "client"; PlaceError says what is wrong."""
    if place.shared_memory:
        clear_at_exit()
    config = zenoh.Config()
    for key, value in _zenoh_settings(place, mode, longest_bytes).items():
        try:
            config.insert_json5(key, json.dumps(value))
        except zenoh.ZError as error:
            raise EndpointError(f"{key} = {value!r} is not understood by Zenoh: {_short_reason(error)}") from None
    try:
        return zenoh.open(config)
    except zenoh.ZError as error:
        where = ", ".join(place.connect or place.listen)
        what = "cannot be reached" if place.connect else "cannot be listened on"
        if place.connect and place.listen:
            what += f", or {', '.join(place.listen)} cannot be listened on"
        raise EndpointError(f"{where} {what}: {_short_reason(error)}") from None


async def open_session_in_thread(place: Endpoint, mode: str) -> zenoh.Session:
    """The same in a thread, since it may take a while; nothing is left open if nobody waits for it any more."""
    opening = asyncio.ensure_future(asyncio.to_thread(open_session, place, mode))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        with contextlib.suppress(EndpointError):
            await close_session(await opening)
        raise


async def close_session(session: zenoh.Session) -> None:
    """Close, in a thread; closed already is as well."""
    try:
        await asyncio.to_thread(session.close)
    except zenoh.ZError as error:
        _log.debug("closing: %s", error)


def _zenoh_settings(place: Endpoint, mode: str, longest_bytes: int) -> dict[str, object]:
    lease_ms = max(200, round(place.lease * 1000))
    found: dict[str, object] = {
        "mode": mode,
        "listen/endpoints": list(place.listen),
        "listen/exit_on_failure": True,
        "connect/endpoints": list(place.connect),
        "connect/exit_on_failure": True,
        "connect/timeout_ms": round(place.connect_timeout_s * 1000),
        "transport/unicast/open_timeout": round(place.connect_timeout_s * 1000),
        "scouting/delay": 0,
        "scouting/multicast/enabled": place.discover,
        "scouting/gossip/enabled": place.direct or mode == "router",
        "transport/link/tx/lease": lease_ms,
        "transport/link/tx/queue/congestion_control/block/wait_before_close": 1000 * max(lease_ms, 5000),
        "transport/link/rx/max_message_size": longest_bytes,
        "transport/shared_memory/enabled": place.shared_memory,
        "adminspace/enabled": False,
    }
    if place.tls is not None:
        found["transport/link/tls"] = place.tls.zenoh_settings()
    if place.access_control is not None:
        found["access_control"] = place.access_control
    return found


def _short_reason(error: zenoh.ZError) -> str:
    """Zenoh's reason without the place in its source where it arose."""
    return str(error).partition(" at /")[0].rstrip(". ")
