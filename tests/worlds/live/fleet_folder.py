"""A small fleet's authority on disk, and real Zenoh sessions that use it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import zenoh

from potluck.worlds.live.security import access_control
from potluck.worlds.live.security.certificate_authority import CertificateAuthority
from potluck.worlds.live.security.tls_credentials import TlsCredentials
from potluck.worlds.live.zenoh_session import Endpoint, open_session

NOW = datetime.now(UTC)


def make_authority(folder: Path, *names: str) -> CertificateAuthority:
    authority = CertificateAuthority.create(folder, ["coordinator.test"], 30, NOW)
    for name in names:
        authority.issue_certificate(name, None, 30, NOW)
    return authority


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def open_coordinator(folder: Path, admitted: Mapping[str, str] | None) -> tuple[zenoh.Session, str]:
    """Its session, and the locator under which it listens."""
    locator = f"tls/127.0.0.1:{free_port()}"
    rules = None if admitted is None else access_control.coordinator_access(admitted)
    endpoint = Endpoint(listen=(locator,), tls=TlsCredentials.from_bundle(folder / "coordinator"), access_control=rules)
    return open_session(endpoint, "router"), locator


def open_device(tls: TlsCredentials | None, locator: str, patience_s: float = 10.0) -> zenoh.Session:
    return open_session(Endpoint(connect=(locator,), tls=tls, connect_timeout_s=patience_s), "client")
