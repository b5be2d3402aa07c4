"""Two directly connected devices and a coordinator: each device can send only as itself, on either link."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zenoh

from potluck.worlds.live.key_expressions import ANY, BULK, CONTROL, admission_key, inbox_key, lane_key, liveliness_key
from potluck.worlds.live.security import access_control
from potluck.worlds.live.security.tls_credentials import TlsCredentials
from potluck.worlds.live.zenoh_session import Endpoint, open_session
from tests.worlds.live.fleet_folder import NOW, free_port, make_authority, open_coordinator

ERA = "run.1"
SETTLE_S = 0.3
ADMITTED = {name: name for name in "abc"}


class Triangle:
    """Device `b` accepts connections and enforces the rules; `a` connects to it and enforces none."""

    def __init__(self, folder: Path) -> None:
        make_authority(folder, "a", "c").issue_certificate("b", ["127.0.0.2"], 30, NOW)
        self.received: list[str] = []
        self.coordinator, hub = open_coordinator(folder, ADMITTED)
        called = f"tls/127.0.0.2:{free_port()}"
        self.b = self._peer(folder / "b", (called,), (hub,), access_control.device_access("b", ADMITTED))
        self.a = self._peer(folder / "a", (), (hub, called), None)
        self.b.declare_subscriber(inbox_key(ERA, "b"), lambda sample: self.received.append(str(sample.key_expr)))
        self.coordinator.declare_queryable(admission_key(ANY), lambda query: query.reply(query.key_expr, b"come in"))
        time.sleep(2 * SETTLE_S)

    def _peer(self, bundle: Path, listen: tuple[str, ...], connect: tuple[str, ...], rules: Any) -> zenoh.Session:
        endpoint = Endpoint(
            listen=listen,
            connect=connect,
            tls=TlsCredentials.from_bundle(bundle),
            access_control=rules,
            direct=True,
            connect_timeout_s=10.0,
        )
        return open_session(endpoint, "peer")

    def send(self, session: zenoh.Session, *keys: str) -> list[str]:
        self.received.clear()
        for key in keys:
            session.put(key, b"sent")
        time.sleep(SETTLE_S)
        return list(self.received)


@pytest.fixture(scope="module")
def triangle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triangle]:
    created = Triangle(tmp_path_factory.mktemp("triangle"))
    with ExitStack() as sessions:
        for session in (created.coordinator, created.a, created.b):
            sessions.enter_context(session)
        yield created


def test_the_devices_are_connected(triangle: Triangle) -> None:
    assert {link.auth_identifier for link in triangle.b.info.links()} == {"a", "coordinator"}


@pytest.mark.parametrize("lane", [CONTROL, BULK])
def test_each_message_is_received_once(triangle: Triangle, lane: str) -> None:
    for session, name in ((triangle.a, "a"), (triangle.coordinator, "coordinator")):
        key = lane_key(ERA, name, "b", lane)
        assert triangle.send(session, key) == [key]


def test_no_device_can_send_as_another(triangle: Triangle) -> None:
    lies = [lane_key(ERA, pretended, "b", CONTROL) for pretended in ("coordinator", "c", "b", ANY)]
    assert triangle.send(triangle.a, *lies) == []


def test_a_device_with_access_rules_still_reaches_the_coordinator(triangle: Triangle) -> None:
    assert any(reply.ok is not None for reply in triangle.b.get(admission_key("b"), timeout=2.0))
    with triangle.coordinator.liveliness().declare_token(liveliness_key(ERA, "coordinator", 0)):
        time.sleep(SETTLE_S)
        tokens = list(triangle.b.liveliness().get(liveliness_key(ERA, "coordinator", 0), timeout=2.0))
        assert len(tokens) == 1
    with triangle.b.liveliness().declare_token(liveliness_key(ERA, "b", 1)):
        time.sleep(SETTLE_S)
        assert len(list(triangle.coordinator.liveliness().get(liveliness_key(ERA, ANY, ANY), timeout=2.0))) == 1
