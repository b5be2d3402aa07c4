"""A small fleet's authority on disk, and real Zenoh sessions that use it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import zenoh

from potluck.worlds.live.security import access
from potluck.worlds.live.security.authority import Authority
from potluck.worlds.live.security.certs import Tls
from potluck.worlds.live.session import Place, open_session

NOW = datetime.now(UTC)


def make_authority(folder: Path, *names: str) -> Authority:
    authority = Authority.create(folder, ["coordinator.test"], 30, NOW)
    for name in names:
        authority.issue(name, None, 30, NOW)
    return authority


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def open_coordinator(folder: Path, admitted: Mapping[str, str] | None) -> tuple[zenoh.Session, str]:
    """Its session, and the locator under which it listens."""
    locator = f"tls/127.0.0.1:{free_port()}"
    rules = None if admitted is None else access.config(admitted)
    place = Place(listen=(locator,), tls=Tls.of(folder / "coordinator"), access=rules)
    return open_session(place, "router"), locator


def open_device(tls: Tls | None, locator: str, patience_s: float = 10.0) -> zenoh.Session:
    return open_session(Place(connect=(locator,), tls=tls, patience=patience_s), "client")
