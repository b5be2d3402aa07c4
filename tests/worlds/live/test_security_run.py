"""A whole run behind the gate: the real host and real visitors over mutual TLS, with tokens and access control."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from potluck.journal import Journal
from potluck.loops.messages import Joined
from potluck.loops.node import Node
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, run_coordinator
from potluck.worlds.live.device_runtime import DeviceOptions, run_device
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRefused, JoinRequest, RunInfo
from potluck.worlds.live.security.admission_policy import AdmissionPolicy
from potluck.worlds.live.security.certificate_authority import CertificateAuthority
from potluck.worlds.live.security.refusal_reasons import serve_refusal_reasons
from potluck.worlds.live.security.tls_credentials import TlsCredentials
from potluck.worlds.live.zenoh_session import Endpoint
from tests.worlds.live.fleet_folder import NOW, free_port, make_authority

FLEET = ("pi-1", "pi-2")
LATER = NOW + timedelta(hours=1)


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_authority(tmp_path / "certs", *FLEET, "pi-9").issue_certificate("late", None, 1, NOW - timedelta(days=9))
    return tmp_path / "certs"


def _gate(certs: Path | None, run: Path) -> AdmissionPolicy:
    return AdmissionPolicy.for_run(run, "digest", FLEET, certs)


def test_reasons_are_told_in_order_of_what_helps(certs: Path, tmp_path: Path) -> None:
    gate = _gate(certs, tmp_path)
    token = gate.issue_token(LATER)
    assert gate.refusal_reason("pi-1", token, NOW) is None
    assert "has expired" in str(gate.refusal_reason("pi-1", token, LATER))
    assert "is not in this run's fleet (pi-1, pi-2)" in str(gate.refusal_reason("pi-9", token, NOW))
    CertificateAuthority.open(certs).revoke_certificate("pi-1", NOW)
    assert "was revoked on" in str(gate.refusal_reason("pi-1", token, NOW))
    assert (
        _gate(certs, tmp_path).refusal_reason("pi-1", token, NOW) is None
    )  # after a restart, with its next certificate


def test_on_loopback_the_token_is_the_only_lock(tmp_path: Path) -> None:
    gate = _gate(None, tmp_path)
    assert gate.access_control() is None
    assert gate.refusal_reason("pi-1", gate.issue_token(LATER), NOW) is None
    assert gate.refusal_reason("pi-1", "", NOW) is not None


def test_a_run_lets_in_whom_it_should_and_nobody_else(certs: Path, tmp_path: Path) -> None:
    gate = _gate(certs, tmp_path)
    joined, ends = asyncio.run(_run(gate, certs))
    assert joined == ["pi-1"]
    assert ends["pi-1"] == "the run is over"
    assert "the token is damaged or of another run" in ends["pi-2"]
    assert "pi-9 is not in this run's fleet (pi-1, pi-2)" in ends["pi-9"]
    assert "knows this name, but not with this certificate" in ends["pi-9 as pi-1"]
    assert "says that our certificate has expired; issue a new one" in ends["late"]


async def _run(gate: AdmissionPolicy, certs: Path) -> tuple[list[str], dict[str, str]]:
    """Who joined, and how each visit ended."""
    locator = f"tls/127.0.0.1:{free_port()}"
    token = gate.issue_token(LATER)
    hellos = {
        "pi-1": ("pi-1", JoinRequest(name="pi-1", token=token)),
        "pi-2": ("pi-2", JoinRequest(name="pi-2", token="made.up")),
        "pi-9": ("pi-9", JoinRequest(name="pi-9", token=token)),
        "pi-9 as pi-1": ("pi-9", JoinRequest(name="pi-1", token=token)),
        "late": ("late", JoinRequest(name="late", token=token)),
    }
    joined: list[str] = []

    async def coordinate(node: Node) -> None:
        async with asyncio.timeout(60):
            while not joined or any(not visits[name].done() for name in visits if name != "pi-1"):
                await _note(node, joined)

    place = Endpoint(
        listen=(locator,), tls=TlsCredentials.from_bundle(certs / "coordinator"), access_control=gate.access_control()
    )
    visits = {
        name: asyncio.create_task(_visit(certs / bundle, locator, hello)) for name, (bundle, hello) in hellos.items()
    }
    await run_coordinator(
        place,
        CoordinatedRun(info=RunInfo(run="run", job=""), seed=0, journal=Journal()),
        coordinate,
        AdmissionHooks(
            check=lambda hello: _welcome(gate, hello),
            on_session_open=lambda session, refused: serve_refusal_reasons(session, gate.permanent_refusal),
        ),
    )
    return joined, {name: await task for name, task in visits.items()}


async def _note(node: Node, joined: list[str]) -> None:
    envelope = await node.receive(node.now() + 0.2)
    if envelope is not None and isinstance(envelope.message, Joined):
        joined.append(envelope.message.device)


def _welcome(gate: AdmissionPolicy, hello: JoinRequest) -> str | JoinRefused:
    reason = gate.refusal_reason(hello.name, hello.token, datetime.now(UTC))
    return hello.name if reason is None else JoinRefused(reason=reason)


async def _visit(bundle: Path, locator: str, hello: JoinRequest) -> str:
    try:
        place = Endpoint(connect=(locator,), tls=TlsCredentials.from_bundle(bundle))
        return await run_device(place, hello, _take_part, DeviceOptions(once=True, timeout_s=5.0))
    except ValueError as error:
        return str(error)


async def _take_part(node: Node, welcome: JoinAccepted) -> None:
    await node.receive(node.now() + 30)
