"""A whole run with admission control: real coordinator and devices over mutual TLS, with tokens and access control."""

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


def _policy(certs: Path | None, run: Path) -> AdmissionPolicy:
    return AdmissionPolicy.for_run(run, "digest", FLEET, certs)


def test_the_most_helpful_reason_comes_first(certs: Path, tmp_path: Path) -> None:
    policy = _policy(certs, tmp_path)
    token = policy.issue_token(LATER)
    assert policy.refusal_reason("pi-1", token, NOW) is None
    assert "has expired" in str(policy.refusal_reason("pi-1", token, LATER))
    assert "is not in this run's fleet (pi-1, pi-2)" in str(policy.refusal_reason("pi-9", token, NOW))
    CertificateAuthority.open(certs).revoke_certificate("pi-1", NOW)
    assert "was revoked on" in str(policy.refusal_reason("pi-1", token, NOW))
    assert (
        _policy(certs, tmp_path).refusal_reason("pi-1", token, NOW) is None
    )  # after a restart, with its next certificate


def test_on_loopback_the_token_is_the_only_check(tmp_path: Path) -> None:
    policy = _policy(None, tmp_path)
    assert policy.access_control() is None
    assert policy.refusal_reason("pi-1", policy.issue_token(LATER), NOW) is None
    assert policy.refusal_reason("pi-1", "", NOW) is not None


def test_a_run_admits_exactly_the_devices_it_should(certs: Path, tmp_path: Path) -> None:
    policy = _policy(certs, tmp_path)
    joined, ends = asyncio.run(_run(policy, certs))
    assert joined == ["pi-1"]
    assert ends["pi-1"] == "the run is over"
    assert "the token is damaged or of another run" in ends["pi-2"]
    assert "pi-9 is not in this run's fleet (pi-1, pi-2)" in ends["pi-9"]
    assert "knows this name, but not with this certificate" in ends["pi-9 as pi-1"]
    assert "says that our certificate has expired; issue a new one" in ends["late"]


async def _run(policy: AdmissionPolicy, certs: Path) -> tuple[list[str], dict[str, str]]:
    """The devices that joined, and how each attempt ended."""
    locator = f"tls/127.0.0.1:{free_port()}"
    token = policy.issue_token(LATER)
    requests = {
        "pi-1": ("pi-1", JoinRequest(name="pi-1", token=token)),
        "pi-2": ("pi-2", JoinRequest(name="pi-2", token="made.up")),
        "pi-9": ("pi-9", JoinRequest(name="pi-9", token=token)),
        "pi-9 as pi-1": ("pi-9", JoinRequest(name="pi-1", token=token)),
        "late": ("late", JoinRequest(name="late", token=token)),
    }
    joined: list[str] = []

    async def coordinate(node: Node) -> None:
        async with asyncio.timeout(60):
            while not joined or any(not device_tasks[name].done() for name in device_tasks if name != "pi-1"):
                await _note(node, joined)

    endpoint = Endpoint(
        listen=(locator,), tls=TlsCredentials.from_bundle(certs / "coordinator"), access_control=policy.access_control()
    )
    device_tasks = {
        name: asyncio.create_task(_visit(certs / bundle, locator, request))
        for name, (bundle, request) in requests.items()
    }
    await run_coordinator(
        endpoint,
        CoordinatedRun(info=RunInfo(run="run", job=""), seed=0, journal=Journal()),
        coordinate,
        AdmissionHooks(
            check=lambda request: _check_request(policy, request),
            on_session_open=lambda session, refused: serve_refusal_reasons(session, policy.permanent_refusal),
        ),
    )
    return joined, {name: await task for name, task in device_tasks.items()}


async def _note(node: Node, joined: list[str]) -> None:
    envelope = await node.receive(node.now() + 0.2)
    if envelope is not None and isinstance(envelope.message, Joined):
        joined.append(envelope.message.device)


def _check_request(policy: AdmissionPolicy, request: JoinRequest) -> str | JoinRefused:
    reason = policy.refusal_reason(request.name, request.token, datetime.now(UTC))
    return request.name if reason is None else JoinRefused(reason=reason)


async def _visit(bundle: Path, locator: str, request: JoinRequest) -> str:
    try:
        endpoint = Endpoint(connect=(locator,), tls=TlsCredentials.from_bundle(bundle))
        return await run_device(endpoint, request, _device_main, DeviceOptions(once=True, timeout_s=5.0))
    except ValueError as error:
        return str(error)


async def _device_main(node: Node, accepted: JoinAccepted) -> None:
    await node.receive(node.now() + 30)
