"""Large messages over real sessions: only lost chunks are sent again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest

from potluck.journal import Instant
from potluck.loops.messages import Invite, Joined, Message, Pull, Push, Released, Segment
from potluck.loops.node import COORDINATOR, Envelope, Node
from potluck.payload import Payload
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, run_coordinator
from potluck.worlds.live.device_runtime import DeviceOptions, run_device
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRequest, RunInfo
from potluck.worlds.live.start_condition import StartCondition
from potluck.worlds.live.zenoh_session import Endpoint
from potluck.worlds.live.zenoh_transport import ZenohTransport
from tests.time_limits import within
from tests.worlds.live.live_fleet import RecordingJournal, free_address

DeviceMain = Callable[[Node, JoinAccepted], Coroutine[Any, Any, None]]
MIB = 1 << 20


async def _next(node: Node, kind: type[Message], seconds: float = 10.0) -> Envelope:
    until = node.now() + seconds
    while (envelope := await node.receive(until)) is not None:
        if isinstance(envelope.message, kind):
            return envelope
    raise TimeoutError(f"no {kind.__name__} within {seconds} s")


async def _with_devices(
    coordinate: Callable[[Node], Coroutine[Any, Any, Any]],
    device_main: DeviceMain,
    *names: str,
    direct: tuple[bool, ...] = (),
    limit_bytes: int = 1 << 26,
    journal: RecordingJournal | None = None,
    shared_memory: bool = False,
) -> Any:
    address = free_address()
    device_tasks = [
        asyncio.create_task(
            run_device(
                Endpoint(
                    connect=(address,),
                    shared_memory=shared_memory,
                    direct=index < len(direct) and direct[index],
                    listen=("tcp/127.0.0.1:0",) if index < len(direct) and direct[index] else (),
                ),
                JoinRequest(name=name),
                device_main,
                DeviceOptions(once=True),
            )
        )
        for index, name in enumerate(names)
    ]
    run_info = RunInfo(run="test", job="", lease=3.0, limit_bytes=limit_bytes)
    result = await run_coordinator(
        Endpoint(listen=(address,), lease=3.0, direct=bool(direct), shared_memory=shared_memory),
        CoordinatedRun(info=run_info, seed=0, journal=journal or RecordingJournal()),
        coordinate,
        AdmissionHooks(check=lambda request: request.name),
        StartCondition(devices=names),
    )
    assert await asyncio.gather(*device_tasks) == ["the run is over"] * len(names)
    return result


def _numbers(nbytes: int, seed: int = 0) -> Payload:
    return Payload(nbytes, (np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8),))


class _LossyTransport:
    """Drops some chunks before they are sent, and counts the chunks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lost: set[int]) -> None:
        self.sent = 0
        put = ZenohTransport._put_blocking

        def leaky(
            transport: ZenohTransport, to: str, chunks: Sequence[Callable[[], tuple[bytes, bytes | None]]]
        ) -> None:
            for chunk in chunks:
                if chunk()[1] is not None and chunk()[0]:
                    self.sent += 1
                    if self.sent in lost:
                        continue
                put(transport, to, [chunk])

        monkeypatch.setattr(ZenohTransport, "_put_blocking", leaky)


@pytest.mark.wall_clock
@pytest.mark.parametrize(
    "lost",
    [{1, 5, 6, 130, 320}, set(range(3, 12))],
    ids=["some and the last", "a whole window"],
)
def test_only_lost_chunks_are_sent_again(monkeypatch: pytest.MonkeyPatch, lost: set[int]) -> None:
    payload = _numbers(20 * MIB)
    leaky = _LossyTransport(monkeypatch, lost)

    async def coordinate(node: Node) -> bytes:
        await node.send("a", Segment(payload, turn=1, first=0, last=0))
        envelope = await _next(node, Push)
        assert isinstance(envelope.message, Push)
        data: bytes = envelope.message.payload.arrays[0].tobytes()
        return data

    async def device_main(node: Node, accepted: JoinAccepted) -> None:
        envelope = await _next(node, Segment)
        assert isinstance(envelope.message, Segment)
        digest = np.frombuffer(envelope.message.payload.arrays[0].tobytes(), np.uint8)[::1000].copy()
        await node.send(
            COORDINATOR, Push(Payload(digest.nbytes, (digest,)), turn=1, first=0, last=0, samples=1, loss=0.0)
        )
        await node.sleep(10)

    with within(20):
        data = asyncio.run(_with_devices(coordinate, device_main, "a"))
    assert data == payload.arrays[0][::1000].tobytes()
    assert leaky.sent == 20 * 16 + len(lost) + 1


def test_shared_memory_transfers_the_same_bytes() -> None:
    payload = _numbers(20 * MIB)

    async def coordinate(node: Node) -> Message:
        await node.send("a", Segment(payload, turn=1, first=0, last=0))
        return (await _next(node, Released)).message

    async def device_main(node: Node, accepted: JoinAccepted) -> None:
        envelope = await _next(node, Segment)
        assert isinstance(envelope.message, Segment)
        same = np.array_equal(envelope.message.payload.arrays[0], payload.arrays[0])
        await node.send(COORDINATOR, Released(int(same)))
        await node.sleep(10)

    with within(20):
        assert asyncio.run(_with_devices(coordinate, device_main, "a", shared_memory=True)) == Released(1)


def test_a_message_over_the_limit_is_declined_and_the_next_one_arrives() -> None:
    async def coordinate(node: Node) -> Message:
        await node.send("a", Segment(_numbers(2 * MIB), turn=1, first=0, last=0))
        await node.send("a", Segment(_numbers(1000), turn=2, first=0, last=0))
        return (await _next(node, Released)).message

    async def device_main(node: Node, accepted: JoinAccepted) -> None:
        envelope = await _next(node, Segment)
        assert isinstance(envelope.message, Segment)
        await node.send(COORDINATOR, Released(envelope.message.turn))
        await node.sleep(10)

    with within(20):
        assert asyncio.run(_with_devices(coordinate, device_main, "a", limit_bytes=MIB)) == Released(2)


def test_small_messages_overtake_long_ones() -> None:
    async def coordinate(node: Node) -> list[str]:
        sending = node.send("a", Segment(_numbers(16 * MIB), turn=1, first=0, last=0))
        await node.sleep(0.01)
        await node.send("a", Invite(1, 0, 0))
        await sending
        return [type((await _next(node, Message)).message).__name__ for _ in range(2)]

    async def device_main(node: Node, accepted: JoinAccepted) -> None:
        for _ in range(2):
            match (await _next(node, Message)).message:
                case Invite():
                    await node.send(COORDINATOR, Pull(1, 0, 0))
                case Segment():
                    await node.send(COORDINATOR, Released(1))
        await node.sleep(10)

    with within(20):
        assert asyncio.run(_with_devices(_after_joined(coordinate), device_main, "a")) == ["Pull", "Released"]


def _after_joined(coordinate: Callable[[Node], Coroutine[Any, Any, Any]]) -> Callable[[Node], Coroutine[Any, Any, Any]]:
    async def begin(node: Node) -> Any:
        await _next(node, Joined)
        return await coordinate(node)

    return begin


def test_what_was_recorded_before_a_message_is_in_the_journal_before_it_arrives() -> None:
    journal = RecordingJournal()

    async def coordinate(node: Node) -> int:
        await node.send("a", Invite(0, 0, 0))
        await _next(node, Push)
        return len(journal.records)

    async def device_main(node: Node, accepted: JoinAccepted) -> None:
        await _next(node, Invite)
        for number in range(500):
            node.record(Instant("a", "crumb", node.now(), {"number": number}))
        node.record(Instant("b", "somebody else's", node.now()))
        await node.send(COORDINATOR, Push(_numbers(3 * MIB), turn=0, first=0, last=0, samples=1, loss=0.0))
        node.record(Instant("a", "last words", node.now()))
        await node.sleep(10)

    with within(20):
        assert asyncio.run(_with_devices(coordinate, device_main, "a", journal=journal)) == 501
    names = [record.name for record in journal.records if isinstance(record, Instant)]
    assert names == ["crumb"] * 500 + ["records refused", "last words"]


@pytest.mark.parametrize("direct", [(True, True), (True, False)], ids=["directly", "through the coordinator"])
def test_devices_send_to_each_other(direct: tuple[bool, ...]) -> None:
    async def coordinate(node: Node) -> float:
        await node.sleep(0.3)  # until all devices have the roster
        await node.send("a", Invite(0, 0, 0))
        started_at = time.monotonic()
        await _next(node, Released)
        return time.monotonic() - started_at

    async def device_main(node: Node, accepted: JoinAccepted) -> None:
        while True:
            envelope = await _next(node, Message, 15)
            match envelope.message:
                case Invite():
                    await node.send("b", Segment(_numbers(3 * MIB), turn=0, first=0, last=0))
                case Segment(payload=payload):
                    assert (envelope.sender, envelope.incarnation) == ("a", 1)
                    assert payload.arrays[0].tobytes() == _numbers(3 * MIB).arrays[0].tobytes()
                    await node.send("a", Pull(0, 0, 0))
                case Pull():
                    assert envelope.sender == "b"
                    await node.send(COORDINATOR, Released(0))

    with within(20):
        assert asyncio.run(_with_devices(coordinate, device_main, "a", "b", direct=direct)) < 5
