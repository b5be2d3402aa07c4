"""A device can send only as itself: honest and malicious devices over real sessions with mutual TLS."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zenoh

from potluck.worlds.live.key_expressions import (
    ANY,
    BULK,
    CONTROL,
    admission_key,
    clock_key,
    inbox_key,
    lane_key,
    liveliness_key,
)
from potluck.worlds.live.security import access_control, refusal_reasons
from potluck.worlds.live.security.certificate_register import admitted_common_names
from potluck.worlds.live.security.tls_credentials import TlsCredentials
from tests.worlds.live.fleet_folder import NOW, make_authority, open_coordinator, open_device

ERA = "run.1"
SETTLE_S = 0.3  # what is allowed has arrived by then


class Stage:
    """The coordinator, devices `a` and `b` of its run, and `c`, which has a certificate but is not in the run."""

    def __init__(self, folder: Path) -> None:
        authority = make_authority(folder, "a", "b", "c", "old")
        shutil.copytree(folder / "old", folder / "stolen")
        authority.revoke_certificate("old", NOW)
        authority.issue_certificate("old", None, 30, NOW)
        self.admitted = admitted_common_names(folder, ["a", "b", "old"])
        self.received: list[tuple[str, str]] = []
        self.tokens: list[tuple[str, bool]] = []
        self.coordinator, locator = open_coordinator(folder, self.admitted)
        self.devices = {
            name: open_device(TlsCredentials.from_bundle(folder / name), locator)
            for name in ("a", "b", "c", "old", "stolen")
        }
        self._listen()
        time.sleep(SETTLE_S)

    def _listen(self) -> None:
        self._subscribe("coordinator", self.coordinator, inbox_key(ERA, "coordinator"))
        for name, session in self.devices.items():
            self._subscribe(name, session, inbox_key(ERA, name))
        self.coordinator.liveliness().declare_subscriber(
            liveliness_key(ERA, ANY, ANY),
            lambda token: self.tokens.append((str(token.key_expr), token.kind == zenoh.SampleKind.PUT)),
        )
        refusal_reasons.serve_refusal_reasons(
            self.coordinator, lambda name: f"{name} is not invited" if name == "c" else None
        )
        for key in (admission_key(ANY), clock_key(ERA, ANY)):
            self.coordinator.declare_queryable(key, lambda query: query.reply(query.key_expr, b"answer"))

    def _subscribe(self, sender: str, session: zenoh.Session, key: str) -> None:
        session.declare_subscriber(key, lambda sample: self.received.append((sender, str(sample.key_expr))))

    def send(self, sender: str, *keys: str) -> list[tuple[str, str]]:
        """Which other sessions receive it."""
        self.received.clear()
        for key in keys:
            (self.coordinator if sender == "coordinator" else self.devices[sender]).put(key, b"sent")
        time.sleep(SETTLE_S)
        return [entry for entry in self.received if entry[0] != sender]

    def query(self, sender: str, key: str) -> bool:
        """Whether there is a reply."""
        return any(reply.ok is not None for reply in self.devices[sender].get(key, timeout=0.7))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    created = Stage(tmp_path_factory.mktemp("stage"))
    with ExitStack() as sessions:
        for session in (created.coordinator, *created.devices.values()):
            sessions.enter_context(session)
        yield created


@pytest.mark.parametrize(("sender", "receiver", "lane"), [("a", "coordinator", BULK), ("a", "b", CONTROL)])
def test_a_device_can_send_as_itself(stage: Stage, sender: str, receiver: str, lane: str) -> None:
    key = lane_key(ERA, sender, receiver, lane)
    assert stage.send(sender, key) == [(receiver, key)]


def test_a_device_cannot_send_as_another(stage: Stage) -> None:
    lies = [
        lane_key(ERA, pretended, receiver, BULK)
        for pretended in ("b", "coordinator", ANY)
        for receiver in ("coordinator", "b", ANY)
    ]
    assert stage.send("a", *lies) == []


def test_a_device_receives_only_what_is_sent_to_it(stage: Stage) -> None:
    received: list[str] = []
    to_a, to_b = (lane_key(ERA, "coordinator", name, BULK) for name in "ab")
    with stage.devices["a"].declare_subscriber("**", lambda sample: received.append(str(sample.key_expr))):
        time.sleep(SETTLE_S)
        assert stage.send("coordinator", to_b) == [("b", to_b)]
        assert stage.send("coordinator", to_a) == [("a", to_a)]
    assert received == [to_a]


def test_a_device_can_query_only_for_itself(stage: Stage) -> None:
    assert stage.query("a", admission_key("a"))
    assert stage.query("a", clock_key(ERA, "a"))
    assert not stage.query("a", admission_key("b"))
    assert not stage.query("a", admission_key(ANY))


def test_a_device_can_declare_only_its_own_liveliness(stage: Stage) -> None:
    stage.tokens.clear()
    incarnation = stage.devices["a"].liveliness()
    with incarnation.declare_token(liveliness_key(ERA, "a", 1)), incarnation.declare_token(liveliness_key(ERA, "b", 1)):
        time.sleep(SETTLE_S)
    time.sleep(SETTLE_S)
    assert stage.tokens == [(liveliness_key(ERA, "a", 1), True), (liveliness_key(ERA, "a", 1), False)]


def test_a_device_sees_the_coordinator_s_liveliness(stage: Stage) -> None:
    with stage.coordinator.liveliness().declare_token(liveliness_key(ERA, "coordinator", 1)):
        tokens = list(stage.devices["a"].liveliness().get(liveliness_key(ERA, "coordinator", ANY), timeout=1.0))
        assert [str(reply.ok.key_expr) for reply in tokens if reply.ok] == [liveliness_key(ERA, "coordinator", 1)]


def test_a_device_outside_the_run_is_ignored_but_can_query_the_reason(stage: Stage) -> None:
    assert stage.send("c", lane_key(ERA, "c", "coordinator", BULK)) == []
    assert not stage.query("c", admission_key("c"))
    assert refusal_reasons.query_refusal_reason(stage.devices["c"], "c", 2.0) == "c is not invited"


def test_a_revoked_certificate_is_ignored_even_if_a_new_one_was_issued(stage: Stage) -> None:
    key = lane_key(ERA, "old", "coordinator", BULK)
    assert stage.send("stolen", key) == []
    assert not stage.query("stolen", admission_key("old"))
    assert stage.send("old", key) == [("coordinator", key)]
    assert stage.query("old", admission_key("old"))
    assert "not with this certificate" in str(refusal_reasons.query_refusal_reason(stage.devices["stolen"], "old", 2.0))


def test_the_coordinator_reports_links_that_it_ignores(stage: Stage) -> None:
    refused: list[tuple[str, str, str]] = []
    refusal_reasons.report_unadmitted_links(stage.coordinator, stage.admitted, lambda *about: refused.append(about))
    time.sleep(SETTLE_S)
    (sender, at, why), (other, address, reason) = sorted(refused)
    assert (sender, other) == ("c", "old")
    assert "its certificate (c) names no device of this run's fleet" in why
    assert "its certificate (old) was revoked" in reason
    assert at.startswith("127.0.0.1:")
    assert address.startswith("127.0.0.1:")


def test_a_device_may_have_the_name_of_a_rule() -> None:
    created = access_control.coordinator_access({name: name for name in ("anyone", "admitted", "who")})
    for part in ("rules", "subjects", "policies"):
        names = [entry["id"] for entry in created[part]]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("names", [[], ["a"], [f"d{number}" for number in range(300)]], ids=len)
def test_zenoh_accepts_the_rules_of_any_fleet(names: list[str]) -> None:
    started_at = time.perf_counter()
    config = zenoh.Config()
    config.insert_json5("access_control", json.dumps(access_control.coordinator_access({name: name for name in names})))
    assert time.perf_counter() - started_at < 5.0
