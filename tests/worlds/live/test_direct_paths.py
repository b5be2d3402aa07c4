"""Devices that accept connections send to each other directly, with and without certificates."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import zenoh

from potluck.loops.messages import Joined, Pull
from potluck.loops.node import Node
from potluck.worlds.live import device_runtime, join_handshake
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, run_coordinator
from potluck.worlds.live.device_runtime import DeviceOptions, run_device
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRequest, RunInfo
from potluck.worlds.live.key_expressions import BULK, CONTROL, inbox_key, lane_key
from potluck.worlds.live.security.admission_policy import AdmissionPolicy
from potluck.worlds.live.security.tls_credentials import TlsCredentials
from potluck.worlds.live.zenoh_session import Endpoint, open_session
from tests.time_limits import within
from tests.worlds.live.fleet_folder import NOW, free_port, make_authority
from tests.worlds.live.live_fleet import RecordingJournal, wait_until

FLEET = {"a": "127.0.0.2", "b": "127.0.0.3"}
OTHER = {"a": "b", "b": "a"}
Check = Callable[[Node], Coroutine[Any, Any, None]]


class DirectRun:
    """Two devices in a run; each sends a message to the other after it has called `look`."""

    def __init__(self, folder: Path, certs: Path | None, *, listen: bool, direct: bool) -> None:
        self._policy = AdmissionPolicy.for_run(folder, "digest", FLEET, certs)
        self._certs, self._listen, self.direct = certs, listen, direct
        self._hub = f"{self._protocol}/127.0.0.1:{free_port()}"
        self.sessions: dict[str, zenoh.Session] = {}
        self.heard: dict[str, str] = {}
        self.listens: dict[str, str] = {}
        self.era = ""

    @property
    def _protocol(self) -> str:
        return "tcp" if self._certs is None else "tls"

    def linked(self) -> bool:
        """Whether each device's session has a link to the other's."""
        ids = {name: str(session.zid()) for name, session in self.sessions.items()}
        peers = {name: set(map(str, session.info.peers_zid())) for name, session in self.sessions.items()}
        return len(ids) == 2 and all(ids[OTHER[name]] in peers[name] for name in ids)

    async def are_linked(self, node: Node) -> None:
        while not self.linked():
            await node.sleep(0.02)

    async def last(self, check: Check) -> None:
        async def coordinate(node: Node) -> None:
            joined = 0
            while joined < len(FLEET):
                envelope = await node.receive()
                joined += envelope is not None and isinstance(envelope.message, Joined)
            async with asyncio.timeout(20):
                while len(self.heard) < len(FLEET) and not any(task.done() for task in device_tasks):
                    await node.sleep(0.02)

        async def device_main(node: Node, accepted: JoinAccepted) -> None:
            await node.receive(node.now())
            await check(node)
            if not self.direct:
                return
            while True:
                await node.send(OTHER[node.name], Pull(0, 0, 0))
                envelope = await node.receive(node.now() + 0.2)
                if envelope is not None and isinstance(envelope.message, Pull):
                    self.heard[node.name] = envelope.sender

        device_tasks = [
            asyncio.create_task(
                run_device(self._endpoint(name), JoinRequest(name=name), device_main, DeviceOptions(once=True))
            )
            for name in FLEET
        ]
        tls = TlsCredentials.from_bundle(self._certs / "coordinator") if self._certs is not None else None
        await run_coordinator(
            Endpoint(listen=(self._hub,), tls=tls, access_control=self._policy.access_control(), direct=self.direct),
            CoordinatedRun(
                info=RunInfo(run="run", job="", common_names=self._policy.common_names if tls is not None else {}),
                seed=0,
                journal=RecordingJournal(),
            ),
            coordinate,
            AdmissionHooks(check=lambda request: request.name),
        )
        await asyncio.gather(*device_tasks)

    def _endpoint(self, name: str) -> Endpoint:
        self.listens[name] = f"{self._protocol}/{FLEET[name]}:{free_port()}"
        listen = (self.listens[name],) if self._listen else ()
        tls = TlsCredentials.from_bundle(self._certs / name) if self._certs is not None else None
        return Endpoint(connect=(self._hub,), listen=listen, direct=self._listen, tls=tls, connect_timeout_s=10.0)


def _run_with_check(run: DirectRun, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    join_run = join_handshake.join_run

    async def noted(*arguments: Any, **options: Any) -> tuple[zenoh.Session, JoinAccepted]:
        session, accepted = await join_run(*arguments, **options)
        run.sessions[accepted.name], run.era = session, accepted.era
        return session, accepted

    monkeypatch.setattr(device_runtime, "join_run", noted)
    with within(40):
        asyncio.run(run.last(check))
    assert run.heard == (OTHER if run.direct else {})


def _certified(folder: Path) -> Path:
    authority = make_authority(folder, "c")
    for name, address in FLEET.items():
        authority.issue_certificate(name, [address], 30, NOW - timedelta(hours=1))
    return folder


@pytest.mark.parametrize("certified", [False, True], ids=["tcp", "tls"])
def test_devices_that_listen_are_connected_directly(
    certified: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certs = _certified(tmp_path / "certs") if certified else None
    run = DirectRun(tmp_path, certs, listen=True, direct=True)
    _run_with_check(run, run.are_linked, monkeypatch)


@pytest.mark.parametrize("certified", [False, True], ids=["tcp", "tls"])
def test_devices_that_do_not_listen_communicate_through_the_coordinator(
    certified: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certs = _certified(tmp_path / "certs") if certified else None
    run = DirectRun(tmp_path, certs, listen=False, direct=True)

    async def check(node: Node) -> None:
        assert not run.linked()

    _run_with_check(run, check, monkeypatch)
    assert not run.linked()


def test_devices_open_no_port_where_they_do_not_send_to_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool] = []
    run = DirectRun(tmp_path, None, listen=True, direct=False)

    async def check(node: Node) -> None:
        while len(run.sessions) < len(FLEET):
            await node.sleep(0.02)
        answers.extend(_answers(address) for address in run.listens.values())

    _run_with_check(run, check, monkeypatch)
    assert answers
    assert not any(answers)


def test_a_listening_device_ignores_devices_outside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as itself, nor as one of the fleet, nor as the coordinator; the certificate is of the same authority."""
    certs = _certified(tmp_path / "certs")
    run = DirectRun(tmp_path, certs, listen=True, direct=True)
    received: list[bytes] = []

    def intrude() -> None:
        keys = [lane_key(run.era, name, "a", CONTROL) for name in ("c", "b", "coordinator")]
        own_key = lane_key(run.era, "b", "a", BULK)
        endpoint = Endpoint(
            connect=(run.listens["a"],),
            tls=TlsCredentials.from_bundle(certs / "c"),
            direct=True,
            connect_timeout_s=10.0,
        )
        with (
            run.sessions["a"].declare_subscriber(
                inbox_key(run.era, "a"), lambda sample: received.append(sample.payload.to_bytes())
            ),
            open_session(endpoint, "peer") as intruder,
        ):
            time.sleep(0.3)
            for key in keys:
                intruder.put(key, b"lies")
            run.sessions["b"].put(own_key, b"truth")
            wait_until(lambda: b"truth" in received)
            time.sleep(0.3)
        assert b"lies" not in received

    async def check(node: Node) -> None:
        await run.are_linked(node)
        if node.name == "b":
            await asyncio.to_thread(intrude)

    _run_with_check(run, check, monkeypatch)
    assert received


def _answers(locator: str) -> bool:
    host, _, port = locator.partition("/")[2].rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
