"""A shaped link takes the time that the fleet file says and is shared by all its users."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from potluck.fleet import Fleet
from potluck.loops.messages import Invite, Joined, Message, Pull, Push, Segment
from potluck.loops.node import COORDINATOR, Envelope, Node
from potluck.payload import Payload
from potluck.settings import decode_settings
from potluck.worlds.live.link_shaping import CHUNK_BYTES, LinkConditions, ShapedLinks, ShapedPipe, TransmissionTimes
from tests.time_limits import within
from tests.worlds.live.live_fleet import LiveFleet

SLOW = {"up": "1 MB/s", "down": "2 MB/s", "latency": 0.02, "overhead": 0.03}
CENTRE = {"link": {"up": "100 MB/s", "down": "100 MB/s", "latency": 0.01, "overhead": 0.0}}


def _fleet(*names: str, centre: dict[str, Any] = CENTRE, **more: Any) -> Fleet:
    devices = [{"preset": "pi4", "name": name, "link": SLOW} for name in names]
    return decode_settings({"devices": devices, "coordinator": centre, "lease": 3, **more}, Fleet)


def test_the_real_network_adds_nothing() -> None:
    calm = LinkConditions()
    assert calm.schedule_send("a", 1 << 30, 0.0) is None
    assert (calm.latency_s("a"), calm.overhead_s("a"), calm.schedule_receive(1 << 30, 5.0), calm.is_cut("a")) == (
        0.0,
        0.0,
        0.0,
        False,
    )
    assert calm.max_chunk_bytes("a") == CHUNK_BYTES


def test_a_pipe_transmits_one_chunk_at_a_time() -> None:
    pipe = ShapedPipe(100.0)
    assert pipe.reserve_slot(1.0, 50) == TransmissionTimes(1.0, 1.5)
    assert pipe.reserve_slot(1.0, 50) == TransmissionTimes(1.5, 2.0)
    assert pipe.reserve_slot(9.0, 50, bandwidth_fraction=0.5) == TransmissionTimes(9.0, 10.0)


def test_the_slower_end_limits_the_rate() -> None:
    up, down = (
        ShapedLinks(_fleet("a"), 0, "a", lambda: 0.0).schedule_send(COORDINATOR, 1_000_000, 0.0),
        ShapedLinks(_fleet("a"), 0, COORDINATOR, lambda: 0.0).schedule_send("a", 1_000_000, 0.0),
    )
    assert (up, down) == (TransmissionTimes(0.0, 1.0), TransmissionTimes(0.0, 0.5))


def test_a_receiver_s_link_is_shared_by_all_who_send() -> None:
    centre = ShapedLinks(
        _fleet("a", "b", centre={"link": {"up": "1e+06 B/s", "down": "1e+06 B/s"}}), 0, COORDINATOR, lambda: 0.0
    )
    assert [centre.schedule_receive(500_000, 0.0) for _ in range(4)] == [0.5, 1.0, 1.5, 2.0]


def test_chunks_are_short_where_a_link_is_slow() -> None:
    shaped = ShapedLinks(_fleet("a"), 0, "a", lambda: 0.0)
    assert shaped.max_chunk_bytes(COORDINATOR) == 10_000


def test_faults_follow_the_script() -> None:
    now_s = [0.0]
    faults = [
        {"kind": "partition", "device": "a", "at": 2, "lasting": 3},
        {"kind": "lose", "at": 2, "lasting": 3, "share": 1},
    ]
    centre = ShapedLinks(_fleet("a", "b", faults=faults), 0, COORDINATOR, lambda: now_s[0])
    states = []
    for now_s[0] in (1.0, 3.0, 6.0):
        states.append((centre.is_cut("a"), centre.is_cut("b"), centre.drops_message("b", Invite(1, 1, 1))))
    assert states == [(False, False, False), (True, False, True), (False, False, False)]


def test_a_lossy_link_loses_its_fraction_and_the_same_messages_each_time() -> None:
    fleet = decode_settings({"devices": [{"preset": "pi4", "name": "a", "link": {**SLOW, "loss": 0.3}}]}, Fleet)

    def lost(seed: int) -> list[bool]:
        shaped = ShapedLinks(fleet, seed, COORDINATOR, lambda: 0.0)
        return [shaped.drops_message("a", Pull(turn, 0, 0)) for turn in range(1000)]

    assert lost(1) == lost(1) != lost(2)
    assert 250 < sum(lost(1)) < 350
    same_seed = ShapedLinks(fleet, 1, COORDINATOR, lambda: 0.0)
    tries = [same_seed.drops_message("a", Pull(5, 0, 0)) for _ in range(50)]
    assert True in tries
    assert False in tries, "a repeated message arrives eventually"


# --- over real sessions -----------------------------------------------------------------------------------------------


async def _next(node: Node, kind: type[Message]) -> Envelope:
    until = node.now() + 10
    while (envelope := await node.receive(until)) is not None:
        if isinstance(envelope.message, kind):
            return envelope
    raise TimeoutError(f"no {kind.__name__}")


async def _push_back(node: Node) -> None:
    """Sends as many bytes back as it gets, and says how long its link took for them."""
    while True:
        envelope = await _next(node, Segment)
        assert isinstance(envelope.message, Segment)
        nbytes = envelope.message.payload.nbytes
        started_at = time.monotonic()
        await node.send(COORDINATOR, _push(np.zeros(nbytes, np.uint8), 0.0))
        await node.send(COORDINATOR, _push(np.zeros(1, np.uint8), time.monotonic() - started_at))


def _push(array: Any, loss: float) -> Push:
    return Push(Payload(array.nbytes, (array,)), turn=0, first=0, last=0, samples=1, loss=loss)


@pytest.mark.parametrize("nbytes", [8_000, 600_000])
@pytest.mark.wall_clock
def test_a_transfer_takes_its_time_each_way(nbytes: int) -> None:
    async def coordinate(node: Node) -> list[float]:
        await _next(node, Joined)
        started_at = node.now()
        await node.send("a", Segment(Payload(nbytes), turn=0, first=0, last=0))
        send_s = node.now() - started_at
        await _next(node, Push)
        total_s = node.now() - started_at
        reply = (await _next(node, Push)).message
        assert isinstance(reply, Push)
        return [send_s, total_s, reply.loss]

    with within(20):
        send_s, total_s, up = LiveFleet(_fleet("a"), _push_back, 0).run(coordinate).result
    assert send_s == pytest.approx(0.03 + nbytes / 2e6, abs=0.03)
    assert up == pytest.approx(0.03 + nbytes / 1e6, abs=0.03)
    assert total_s == pytest.approx(send_s + up + 2 * 0.03, abs=0.05)


async def _push_once(node: Node) -> None:
    await _next(node, Invite)
    await node.send(COORDINATOR, _push(np.zeros(300_000, np.uint8), 0.0))
    await asyncio.sleep(10)


@pytest.mark.wall_clock
def test_simultaneous_senders_share_the_coordinator_s_link() -> None:
    async def coordinate(node: Node) -> list[float]:
        for _ in range(3):
            await _next(node, Joined)
        started_at = node.now()
        for name in "abc":
            node.send(name, Invite(0, 0, 0))
        return [(await _next(node, Push)) and node.now() - started_at for _ in range(3)]

    narrow = {"link": {"up": "100 MB/s", "down": "1 MB/s", "latency": 0.0, "overhead": 0.0}}
    with within(20):
        ends = LiveFleet(_fleet("a", "b", "c", centre=narrow), _push_once, 0).run(coordinate).result
    assert ends[-1] == pytest.approx(0.9 + 0.07, abs=0.1)
    assert ends[0] > 0.75, "they share it evenly, so all end late"
