"""Opens Zenoh sessions from an Endpoint.

The coordinator is a Zenoh router, so that devices that cannot reach each other communicate through it. A device is a
client of the router or, where devices connect to each other, a peer that accepts connections.
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

_FULL_PER_LEASE, _MAX_FULL_MS = 5, 1000  # how long a put waits while a link is full: this part of a lease, at most
_MAX_MESSAGE_BYTES = 17 << 20  # a chunk with its header; Zenoh drops longer messages before it reassembles them

_log = logging.getLogger("potluck")


class EndpointError(UserError):
    """An address cannot be listened on or reached."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node listens, what it connects to, and how."""

    listen: tuple[str, ...] = ()  # locators such as tcp/0.0.0.0:7447 or tls/0.0.0.0:7447
    connect: tuple[str, ...] = ()
    tls: TlsCredentials | None = None
    access_control: dict[str, Any] | None = None  # Zenoh's `access_control`
    lease: float = 5.0  # until a silent connection is closed
    direct: bool = False  # devices connect to each other
    discover: bool = False  # devices can discover the coordinator by multicast
    shared_memory: bool = False  # between processes of one host; never where a link is shaped or timed
    connect_timeout_s: float = 3.0  # how long one attempt to connect may take
    limit_connections: bool = False  # a coordinator's: see `connections`


def open_session(endpoint: Endpoint, mode: str, max_message_bytes: int = _MAX_MESSAGE_BYTES) -> zenoh.Session:
    """Open a session as "router" (the coordinator), "peer" or "client"; EndpointError says what is wrong."""
    if endpoint.shared_memory:
        clear_at_exit()
    config = zenoh.Config()
    for key, value in _zenoh_settings(endpoint, mode, max_message_bytes).items():
        try:
            config.insert_json5(key, json.dumps(value))
        except zenoh.ZError as error:
            raise EndpointError(f"Zenoh does not accept {key} = {value!r}: {_short_reason(error)}") from None
    try:
        return zenoh.open(config)
    except zenoh.ZError as error:
        where = ", ".join(endpoint.connect or endpoint.listen)
        what = "cannot be reached" if endpoint.connect else "cannot be listened on"
        if endpoint.connect and endpoint.listen:
            what += f", or {', '.join(endpoint.listen)} cannot be listened on"
        raise EndpointError(f"{where} {what}: {_short_reason(error)}") from None


async def open_session_in_thread(endpoint: Endpoint, mode: str) -> zenoh.Session:
    """Open a session in a thread; if the caller is cancelled meanwhile, the session is closed again."""
    opening = asyncio.ensure_future(asyncio.to_thread(open_session, endpoint, mode))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        with contextlib.suppress(EndpointError):
            await close_session(await opening)
        raise


async def close_session(session: zenoh.Session) -> None:
    """Close a session in a thread; it may be closed already."""
    try:
        await asyncio.to_thread(session.close)
    except zenoh.ZError as error:
        _log.debug("cannot close the session: %s", error)


def _zenoh_settings(endpoint: Endpoint, mode: str, max_message_bytes: int) -> dict[str, object]:
    lease_ms = max(200, round(endpoint.lease * 1000))
    full_us = 1000 * min(lease_ms // _FULL_PER_LEASE, _MAX_FULL_MS)
    settings: dict[str, object] = {
        "mode": mode,
        "listen/endpoints": list(endpoint.listen),
        "listen/exit_on_failure": True,
        "connect/endpoints": list(endpoint.connect),
        "connect/exit_on_failure": True,
        "connect/timeout_ms": round(endpoint.connect_timeout_s * 1000),
        "connect/retry": {"period_init_ms": 100, "period_max_ms": 400, "period_increase_factor": 1.4},
        "transport/unicast/open_timeout": round(endpoint.connect_timeout_s * 1000),
        "transport/unicast/accept_pending": 1024,
        "transport/unicast/accept_timeout": 5000,
        "scouting/delay": 0,
        "scouting/multicast/enabled": endpoint.discover,
        "scouting/gossip/enabled": endpoint.direct or mode == "router",
        "transport/link/tx/lease": lease_ms,
        "transport/link/tx/queue/congestion_control/drop/wait_before_drop": full_us,
        "transport/link/tx/queue/congestion_control/drop/max_wait_before_drop_fragments": full_us,
        "transport/link/tx/queue/congestion_control/block/wait_before_close": 1000 * max(lease_ms, 5000),
        "transport/link/rx/max_message_size": max_message_bytes,
        "transport/shared_memory/enabled": endpoint.shared_memory,
        "adminspace/enabled": False,
    }
    if endpoint.tls is not None:
        settings["transport/link/tls"] = endpoint.tls.zenoh_settings()
    if endpoint.access_control is not None:
        settings["access_control"] = endpoint.access_control
    return settings


def _short_reason(error: zenoh.ZError) -> str:
    """Zenoh's error message without the source location."""
    return str(error).partition(" at /")[0].rstrip(". ")
