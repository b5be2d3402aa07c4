"""A device that sends invalid messages or may not join gets a reason, and the run continues."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import numpy as np
import pytest
import zenoh

from potluck.errors import UserError
from potluck.journal import Instant
from potluck.loops.messages import Invite, Joined, Lost, Message, Pull, Push
from potluck.loops.node import Node
from potluck.payload import Payload
from potluck.worlds.live import handshake_messages, key_expressions, wire_format
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, run_coordinator
from potluck.worlds.live.device_runtime import DeviceOptions, JoinRefusedError, run_device
from potluck.worlds.live.handshake_messages import PROTOCOL, JoinAccepted, JoinRefused, JoinRequest
from potluck.worlds.live.membership import MembershipRules
from potluck.worlds.live.refusal_log import RefusalLog
from potluck.worlds.live.zenoh_session import Endpoint, EndpointError, open_session
from tests.time_limits import within
from tests.worlds.live.live_fleet import RecordingJournal, free_address
from tests.worlds.live.processes import echo, run_info

Scenario = Callable[[Endpoint, str, Node], Coroutine[Any, Any, None]]


def _check_request(request: JoinRequest) -> str | JoinRefused:
    if request.token != "t":
        return JoinRefused(reason="the token is wrong; ask for a new one")
    if request.digest not in ("", "d1"):
        return JoinRefused(reason="it has another job's model")
    return request.name


async def _next(node: Node, kind: type[Message]) -> Message:
    until = node.now() + 10
    while (envelope := await node.receive(until)) is not None:
        if isinstance(envelope.message, kind):
            return envelope.message
    raise TimeoutError(f"no {kind.__name__}")


def _undisturbed(scenario: Scenario, journal: RecordingJournal | None = None) -> None:
    """Run the story during a run with an honest device, which must not be affected."""
    address, eras = free_address(), list[str]()
    endpoint = Endpoint(connect=(address,))

    async def device_main(node: Node, accepted: JoinAccepted) -> None:
        eras.append(accepted.era)
        await echo(node, accepted)

    async def coordinate(node: Node) -> None:
        assert await _next(node, Joined) == Joined("honest", 1)
        for turn in range(2):
            await node.send("honest", Invite(turn, 0, 0))
            assert await _next(node, Pull) == Pull(turn, 1, 0)
            if turn == 0:
                await scenario(endpoint, eras[0], node)
        assert eras == eras[:1]

    async def both() -> None:
        device_task = asyncio.create_task(
            run_device(endpoint, JoinRequest(name="honest", token="t"), device_main, DeviceOptions(once=True))
        )
        await run_coordinator(
            Endpoint(listen=(address,)),
            CoordinatedRun(info=run_info(2.0), seed=0, journal=journal or RecordingJournal()),
            coordinate,
            AdmissionHooks(check=_check_request),
        )
        await device_task

    with within(20):
        asyncio.run(both())


@pytest.mark.parametrize(
    ("join_request", "reason"),
    [
        (JoinRequest(name="thief", token="guess"), "token is wrong"),
        (
            JoinRequest(name="early", token="t", protocol=PROTOCOL + 1),
            f"speaks protocol {PROTOCOL + 1}.*newer.*same version",
        ),
        (JoinRequest(name="lost", token="t", digest="d2"), "another job's model"),
    ],
    ids=["token", "protocol", "digest"],
)
def test_a_refused_device_gets_the_reason(join_request: JoinRequest, reason: str) -> None:
    async def scenario(endpoint: Endpoint, era: str, node: Node) -> None:
        with pytest.raises(JoinRefusedError, match=f"{join_request.name} was refused: .*{reason}"):
            await run_device(endpoint, join_request, echo)

    _undisturbed(scenario)


def test_a_refusal_is_logged_with_address_and_reason_and_recorded(caplog: pytest.LogCaptureFixture) -> None:
    journal = RecordingJournal()

    async def scenario(endpoint: Endpoint, era: str, node: Node) -> None:
        for _ in range(3):
            with pytest.raises(JoinRefusedError):
                await run_device(endpoint, JoinRequest(name="thief", token="guess"), echo)

    with caplog.at_level("WARNING", "potluck"):
        _undisturbed(scenario, journal)
    lines = [message for message in caplog.messages if "thief" in message]
    assert len(lines) == 1, "once, not for every request"
    assert re.fullmatch(r"refused thief at 127\.0\.0\.1:\d+: the token is wrong; ask for a new one", lines[0])
    noted = [record for record in journal.records if isinstance(record, Instant) and record.name == "turned away"]
    assert [(record.node, record.fields["device"], record.fields["reason"]) for record in noted] == [
        ("coordinator", "thief", "the token is wrong; ask for a new one")
    ]
    assert noted[0].fields["from"] in lines[0]


def test_the_number_of_remembered_refusals_is_bounded() -> None:
    journal = RecordingJournal()
    refusals = RefusalLog(journal.write_record, lambda: 0.0)
    for number in range(2000):
        refusals(f"stranger-{number}", "", "not in the fleet")
    assert len(journal.records) == 2000
    assert len(refusals._logged_at) < 300


def test_a_device_bound_to_another_job_is_refused() -> None:
    """Its first request names no job; when it rejoins, it names the job that it took part in."""

    async def scenario(endpoint: Endpoint, era: str, node: Node) -> None:
        async def leave(device: Node, accepted: JoinAccepted) -> None:
            await device.receive(device.now() + 0.1)

        request = JoinRequest(name="guest", token="t")
        await run_device(endpoint, request, leave, DeviceOptions(once=True, known_digest=lambda: ""))
        with pytest.raises(JoinRefusedError, match="another job's model"):
            await run_device(endpoint, request, leave, DeviceOptions(once=True, known_digest=lambda: "d2"))

    _undisturbed(scenario)


def test_an_undecodable_join_request_is_answered() -> None:
    async def scenario(endpoint: Endpoint, era: str, node: Node) -> None:
        for invalid in (b"", b"\xff" * 100, bytes(1 << 20), msgspec.msgpack.encode({"type": "Hello"})):
            with open_session(endpoint, "client") as session:
                replies = await asyncio.to_thread(_get, session, key_expressions.admission_key("x"), invalid)
            answer = handshake_messages.decode_join_answer(replies[0])
            assert isinstance(answer, JoinRefused)
            assert "handshake message" in answer.reason

    _undisturbed(scenario)


def _get(session: zenoh.Session, key: str, payload: bytes) -> list[bytes]:
    return [reply.ok.payload.to_bytes() for reply in session.get(key, payload=payload, timeout=3) if reply.ok]


def _false_offer() -> bytes:
    values = np.zeros(4)
    push = Push(Payload(10 * 2**30, (values,)), turn=0, first=0, last=0, samples=0, loss=0.0)
    return wire_format.encode_offer(1, 0, 1, push, [values], 1 << 20)


@pytest.mark.parametrize("lane", [key_expressions.CONTROL, key_expressions.BULK])
def test_a_device_that_sends_invalid_messages_is_expelled(lane: str) -> None:
    """First an offer of ten gigabytes, then noise; after the third one it is expelled with the reason."""

    async def scenario(endpoint: Endpoint, era: str, node: Node) -> None:
        invalid = [_false_offer(), b"\xc1" * 50, bytes(70_000)]

        async def misbehave(bad: Node, accepted: JoinAccepted) -> None:
            with open_session(endpoint, "client") as session:
                await bad.receive(bad.now() + 0.1)
                for data in invalid:
                    session.put(key_expressions.lane_key(accepted.era, "bad", "coordinator", lane), data)
                await bad.sleep(10)

        request = JoinRequest(name="bad", token="t")
        device_task = asyncio.create_task(run_device(endpoint, request, misbehave, DeviceOptions(once=True)))
        assert await _next(node, Joined) == Joined("bad", 1)
        lost = await _next(node, Lost)
        assert isinstance(lost, Lost)
        assert lost.device == "bad"
        assert "3 invalid messages" in lost.reason
        device_task.cancel()
        await asyncio.gather(device_task, return_exceptions=True)

    _undisturbed(scenario)


def _absurd_offer() -> bytes:
    push = Push(Payload(0), turn=0, first=0, last=0, samples=0, loss=0.0)
    return msgspec.msgpack.encode([1, 0, 1, 1 << 20, [["<f4", [0, 2**48, 2**48]]], push])


def test_absurd_offers_on_the_wire_expel_their_sender_and_raise_nothing(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor does a message to a pattern of keys, or a leave notice that tries to clear the coordinator's screen."""

    async def scenario(endpoint: Endpoint, era: str, node: Node) -> None:
        async def misbehave(bad: Node, accepted: JoinAccepted) -> None:
            with open_session(endpoint, "client") as session:
                await bad.receive(bad.now() + 0.1)
                session.put("potluck/**", b"to everyone")
                for _ in range(3):
                    session.put(key_expressions.lane_key(era, "bad", "coordinator", "bulk"), _absurd_offer())
                await bad.sleep(10)

        device_task = asyncio.create_task(
            run_device(endpoint, JoinRequest(name="bad", token="t"), misbehave, DeviceOptions(once=True))
        )
        assert await _next(node, Joined) == Joined("bad", 1)
        lost = await _next(node, Lost)
        assert isinstance(lost, Lost)
        assert "3 invalid messages: no array can have the shape (0, 281474976710656" in lost.reason
        device_task.cancel()
        await asyncio.gather(device_task, return_exceptions=True)

    _undisturbed(scenario)
    assert "Traceback" not in caplog.text + capfd.readouterr().err


def test_a_reason_cannot_act_on_the_coordinators_terminal(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(endpoint: Endpoint, era: str, node: Node) -> None:
        async def fail(bad: Node, accepted: JoinAccepted) -> None:
            await bad.receive(bad.now() + 0.3)
            raise UserError("\x1b[2J\u202egone\nrefused honest: nonsense")

        with pytest.raises(UserError):
            await run_device(endpoint, JoinRequest(name="bad", token="t"), fail, DeviceOptions(once=True))
        lost = await _next(node, Lost)
        assert isinstance(lost, Lost)
        assert lost.reason.startswith("failed: UserError: \\x1b[2J\\u202egone")

    with caplog.at_level("INFO", "potluck"):
        _undisturbed(scenario)
    assert not any(character in caplog.text for character in "\x1b\u202e")


@pytest.mark.parametrize("name", [".", "..", "a\x1b[2J", "pi\u202e", "x" * 120, "a$b"])
def test_what_is_no_name_cannot_join(name: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(endpoint: Endpoint, era: str, node: Node) -> None:
        request = handshake_messages.encode_handshake(JoinRequest(name=name, token="t"))
        with open_session(endpoint, "client") as session:
            (reply,) = await asyncio.to_thread(_get, session, key_expressions.admission_key(name), request)
        answer = handshake_messages.decode_join_answer(reply)
        assert isinstance(answer, JoinRefused)
        assert answer.reason.startswith("name ")

    _undisturbed(scenario)
    assert "refused" in caplog.text
    assert not any(character in caplog.text for character in "\x1b\u202e")


def test_a_device_that_keeps_failing_has_to_wait() -> None:
    async def scenario(endpoint: Endpoint, era: str, node: Node) -> None:
        async def fail(bad: Node, accepted: JoinAccepted) -> None:
            raise IndexError("layer 1000")

        request = JoinRequest(name="bad", token="t")
        for _ in range(MembershipRules(lease=1.0).max_losses):
            with pytest.raises(IndexError):
                await run_device(endpoint, request, fail, DeviceOptions(once=True))
        with pytest.raises(EndpointError, match="bad was lost too often; it may join again in"):
            await run_device(endpoint, request, fail, DeviceOptions(once=True, timeout_s=0.0))

    _undisturbed(scenario)


def test_invalid_bytes_and_chunks_without_an_offer_are_dropped() -> None:
    async def scenario(endpoint: Endpoint, era: str, node: Node) -> None:
        with open_session(endpoint, "client") as session:
            for sender in ("nobody", "honest"):
                key = key_expressions.lane_key(era, sender, "coordinator", key_expressions.BULK)
                head = wire_format.encode_chunk(1 if sender == "honest" else 3, 99, 5, b"data")
                session.put(key, b"data", attachment=head)
                session.put(key_expressions.lane_key(era, "nobody", "coordinator", key_expressions.CONTROL), b"\xff")
                old = wire_format.encode_frame(7, 0, Pull(0, 0, 0))
                session.put(key_expressions.lane_key(era, "honest", "coordinator", key_expressions.CONTROL), old)
            await node.sleep(0.2)
            assert await node.receive(0.0) is None

    _undisturbed(scenario)
