"""Devices can join while somebody else opens connections that are none; today's limits of Zenoh do not allow that."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import msgspec
import pytest
import zenoh
from zenoh.handlers import Callback

from benchmarks.faults.stray_connections import stray_connections
from potluck.worlds.live.connections.connection_limiter import ConnectionLimiter, open_limited_session
from potluck.worlds.live.connections.own_sockets import shut_connection
from potluck.worlds.live.connections.shared_port import is_supported
from potluck.worlds.live.security.certificate_authority import CertificateAuthority
from potluck.worlds.live.security.tls_credentials import TlsCredentials
from potluck.worlds.live.zenoh_session import Endpoint, EndpointError, open_session
from tests.worlds.live.fleet_folder import NOW, free_port

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux: connections are not limited elsewhere")

PER_S = 200.0
MAX_JOIN_S = 2.0


class Coordinator:
    """A session whose connections are limited, and how a device reaches it."""

    def __init__(self, tls: tuple[TlsCredentials, TlsCredentials] | None, host: str = "127.0.0.1") -> None:
        self.port = free_port()
        protocol = "tcp" if tls is None else "tls"
        endpoint = Endpoint(
            listen=(f"{protocol}/{host}:{self.port}",), tls=tls[0] if tls else None, limit_connections=True
        )
        self.session, limiter = asyncio.run(open_limited_session(endpoint))
        assert limiter is not None
        self.limiter: ConnectionLimiter = limiter
        self.session.declare_queryable("answer", Callback(_answer, indirect=False))
        self.device = Endpoint(connect=(f"{protocol}/127.0.0.1:{self.port}",), tls=tls[1] if tls else None)

    def join(self) -> zenoh.Session:
        """Connect and get an answer, as a device does: with retries."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                session = open_session(msgspec.structs.replace(self.device), "client")
            except EndpointError:
                continue
            if any(reply.ok is not None for reply in session.get("answer", timeout=2.0)):
                return session
            _end(session)
        raise TimeoutError("a device cannot join")

    def join_s(self) -> float:
        started = time.monotonic()
        _end(self.join())
        return time.monotonic() - started

    def close(self) -> None:
        _end(self.session)
        self.limiter.close()


def _answer(query: zenoh.Query) -> None:
    query.reply("answer", b"")
    query.drop()  # type: ignore[no-untyped-call]


def _end(session: zenoh.Session) -> None:
    session.close()  # type: ignore[no-untyped-call]


@pytest.fixture
def tls(tmp_path: Path) -> tuple[TlsCredentials, TlsCredentials]:
    authority = CertificateAuthority.create(tmp_path / "certs", ["127.0.0.1"], 30, NOW)
    authority.issue_certificate("pi", None, 30, NOW)
    return TlsCredentials.from_bundle(tmp_path / "certs" / "coordinator"), TlsCredentials.from_bundle(
        tmp_path / "certs" / "pi"
    )


def _wait_until_diverted(coordinator: Coordinator) -> None:
    until = time.monotonic() + 20
    while not coordinator.limiter._diverting:
        assert time.monotonic() < until, "garbage is not noticed"
        time.sleep(0.05)


@pytest.mark.wall_clock
@pytest.mark.parametrize("kind", ["hello-close", "hello", "random"])
def test_garbage_from_the_same_address_does_not_delay_a_join(
    kind: str, tls: tuple[TlsCredentials, TlsCredentials]
) -> None:
    coordinator = Coordinator(tls)
    try:
        running = coordinator.join()
        with stray_connections(coordinator.port, kind, PER_S):
            if kind != "hello":  # those hurt only when their handshakes time out
                _wait_until_diverted(coordinator)
            delays = sorted(coordinator.join_s() for _ in range(5))
        assert delays[-1] < MAX_JOIN_S, delays
        assert running.info.links(), "a running device lost its connection"
        _end(running)
    finally:
        coordinator.close()


@pytest.mark.wall_clock
def test_half_handshakes_without_tls_do_not_delay_a_join() -> None:
    coordinator = Coordinator(None)
    try:
        with stray_connections(coordinator.port, "init", PER_S):
            _wait_until_diverted(coordinator)
            delays = sorted(coordinator.join_s() for _ in range(5))
        assert delays[-1] < MAX_JOIN_S, delays
    finally:
        coordinator.close()


def test_without_garbage_zenoh_accepts_itself_and_no_process_is_started() -> None:
    coordinator = Coordinator(None)
    try:
        with coordinator.join() as device:
            assert device.info.links()
        assert coordinator.limiter._process is None
    finally:
        coordinator.close()


def test_a_forwarded_connection_has_its_real_address_and_survives_the_return_to_zenoh() -> None:
    coordinator = Coordinator(None, host="[::]")
    try:
        coordinator.limiter._divert()
        device = coordinator.join()
        (link,) = coordinator.session.info.links()
        (own,) = device.info.links()
        assert not link.src.endswith(f":{coordinator.port}"), "it was not forwarded"
        shown = coordinator.limiter.public_address(link.dst.partition("/")[2])
        assert shown.rpartition(":")[2] == own.src.rpartition(":")[2]
        assert "127.0.0.1" in shown
        coordinator.limiter._port.divert(to_ours=False)
        assert any(reply.ok is not None for reply in device.get("answer", timeout=5.0))
        _end(device)
    finally:
        coordinator.close()


def test_a_proxy_that_dies_is_replaced() -> None:
    coordinator = Coordinator(None)
    try:
        coordinator.limiter._divert()
        _end(coordinator.join())
        process = coordinator.limiter._process
        assert process is not None
        process.kill()
        process.wait()
        _end(coordinator.join())
        assert coordinator.limiter._process is not process
    finally:
        coordinator.close()


def test_the_port_is_free_after_closing() -> None:
    coordinator = Coordinator(None)
    coordinator.limiter._divert()
    _end(coordinator.join())
    coordinator.close()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", coordinator.port))
        probe.listen()


def test_one_connection_can_be_shut_and_the_others_stay() -> None:
    coordinator = Coordinator(None)
    try:
        first, second = coordinator.join(), coordinator.join()
        by_zid = {str(link.zid): link for link in coordinator.session.info.links()}
        link = by_zid[str(first.info.zid())]
        assert shut_connection(link.src, link.dst)
        until = time.monotonic() + 5
        while link.dst in [other.dst for other in coordinator.session.info.links()]:
            assert time.monotonic() < until, "the link is still there"
            time.sleep(0.02)
        assert by_zid[str(second.info.zid())].dst in [other.dst for other in coordinator.session.info.links()]
        _end(first)
        _end(second)
    finally:
        coordinator.close()
