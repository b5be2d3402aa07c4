"""The simulated world conforms to the Node interface, and its times are exact."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

from potluck.fleet import Fleet
from potluck.journal import Journal, JournalRecord
from potluck.loops.messages import HEADER_BYTES, Invite, Joined, Lost, Message, Pull, Push, Segment
from potluck.loops.node import Envelope, Latch, Node, Step, Work
from potluck.payload import Payload
from potluck.settings import decode_settings
from potluck.worlds.device_error import DeviceError
from potluck.worlds.simulated import virtual_clock
from potluck.worlds.simulated.compute_pool import ComputePool
from potluck.worlds.simulated.simulated_world import SimulatedWorld
from tests.time_limits import within
from tests.worlds.conformance import Ended, Main, MakeWorld, NodeConformance, fleet_of

LIMIT = 20.0


class _RecordingJournal(Journal):
    """A journal that keeps its records."""

    def __init__(self) -> None:
        super().__init__(None)
        self.records: list[JournalRecord] = []

    def write_record(self, record: JournalRecord) -> None:
        self.records.append(record)


def _live(
    fleet: Fleet, coordinator: Main, device: Main, *, seed: int = 0, threads: int = 0, start: float = 0.0
) -> Ended:
    journal, pool = _RecordingJournal(), ComputePool(threads)
    try:
        with within(LIMIT):
            result = virtual_clock.run_virtual_time(
                SimulatedWorld(fleet, seed, journal, pool).run(coordinator, device, start)
            )
    finally:
        pool.close()
    return Ended(result, journal.records)


async def _idle(node: Node) -> None:
    while True:
        await node.receive()


class TestSimulated(NodeConformance):
    @pytest.fixture(params=[0, 2], ids=["no threads", "two threads"])
    def make_world(self, request: pytest.FixtureRequest) -> MakeWorld:
        def live(fleet: Fleet, coordinator: Main, device: Main, *, seed: int = 0) -> Ended:
            return _live(fleet, coordinator, device, seed=seed, threads=request.param)

        return live


# --- bytes in time ----------------------------------------------------------------------------------------------------

LINK = {"up": "1000 B/s", "down": "2000 B/s", "latency": 0.25, "overhead": 0.5}
CENTRE = {"link": {"up": "3000 B/s", "down": "1500 B/s", "latency": 0.125, "overhead": 0.25}}


def _segment(nbytes: int) -> Segment:
    return Segment(Payload(nbytes - HEADER_BYTES), turn=0, first=0, last=0)


def _push(nbytes: int) -> Push:
    return Push(Payload(nbytes - HEADER_BYTES), turn=0, first=0, last=0, samples=0, loss=0.0)


async def _here(node: Node, count: int) -> None:
    for _ in range(count):
        envelope = await node.receive()
        assert envelope is not None
        assert isinstance(envelope.message, Joined)


async def _arrivals(node: Node, count: int) -> dict[str, float]:
    """When a message of each device arrived."""
    arrivals: dict[str, float] = {}
    while len(arrivals) < count:
        envelope = await node.receive()
        assert envelope is not None
        arrivals[envelope.sender] = node.now()
    return arrivals


async def _push_when_pulled(node: Node) -> None:
    while True:
        envelope = await node.receive()
        assert envelope is not None
        if isinstance(envelope.message, Segment):
            node.send(envelope.sender, _push(3000))


def test_a_small_message_pays_latency_and_its_bytes() -> None:
    async def coordinate(node: Node) -> float:
        await _here(node, 1)
        node.send("a", Invite(0, 0, 0))
        return (await _arrivals(node, 1))["a"]

    async def answer(node: Node) -> None:
        await node.receive()
        assert node.now() == pytest.approx(0.375 + HEADER_BYTES / 2000)
        node.send("coordinator", Pull(0, 0, 0))
        await _idle(node)

    outbound_s, return_s = 0.375 + HEADER_BYTES / 2000, 0.375 + HEADER_BYTES / 1000
    fleet = fleet_of("a", link=LINK, coordinator=CENTRE)
    assert _live(fleet, coordinate, answer).result == pytest.approx(outbound_s + return_s, abs=1e-12)


def test_a_transfer_pays_overhead_bytes_and_latency() -> None:
    async def coordinate(node: Node) -> list[float]:
        await _here(node, 1)
        await node.send("a", _segment(4000))
        return [node.now(), (await _arrivals(node, 1))["a"]]

    left = 0.75 + 4000 / 2000
    back = left + 0.375 + 0.75 + 3000 / 1000 + 0.375
    fleet = fleet_of("a", link=LINK, coordinator=CENTRE)
    assert _live(fleet, coordinate, _push_when_pulled).result == pytest.approx([left, back], abs=1e-9)


def test_all_devices_share_the_coordinator_s_link() -> None:
    """Three devices at 2000 each, the coordinator's 3000 between them; then its 1500 for the answers at 1000 each."""

    async def coordinate(node: Node) -> list[float]:
        await _here(node, 3)
        for name in "abc":
            node.send(name, _segment(4000))
        return sorted((await _arrivals(node, 3)).values())

    arrival_s = 0.75 + 4000 / 1000 + 0.375
    back = arrival_s + 0.75 + 3000 / 500 + 0.375
    fleet = fleet_of("a", "b", "c", link=LINK, coordinator=CENTRE)
    assert _live(fleet, coordinate, _push_when_pulled).result == pytest.approx([back] * 3, abs=1e-9)


def test_small_messages_overtake() -> None:
    async def coordinate(node: Node) -> list[type[Message]]:
        await _here(node, 1)
        node.send("a", _segment(4000))
        await node.send("a", Invite(0, 0, 0))
        await _arrivals(node, 1)
        return []

    kinds: list[type[Message]] = []

    async def listen(node: Node) -> None:
        while len(kinds) < 2:
            envelope = await node.receive()
            assert envelope is not None
            kinds.append(type(envelope.message))
        node.send("coordinator", Pull(0, 0, 0))
        await _idle(node)

    _live(fleet_of("a", link=LINK, coordinator=CENTRE), coordinate, listen)
    assert kinds == [Invite, Segment]


def test_a_link_s_quality_changes_during_a_transfer() -> None:
    """Half of 2000 from 1.25 s on: 1000 bytes by then, the other 3000 at 1000."""
    quality = {"kind": "piecewise", "at": [0, 1.25], "levels": [1.0, 0.5]}

    async def coordinate(node: Node) -> float:
        await _here(node, 1)
        await node.send("a", _segment(4000))
        return node.now()

    fleet = fleet_of("a", link={**LINK, "quality": quality}, coordinator=CENTRE)
    assert _live(fleet, coordinate, _idle).result == pytest.approx(1.25 + 3.0, abs=1e-9)


def test_a_message_is_not_delayed_for_ever_by_a_moment_without_bandwidth() -> None:
    """No bandwidth between 1 s and 2 s; a header that is sent at 1.5 s should arrive soon after 2 s."""
    quality = {"kind": "piecewise", "at": [0, 1, 2], "levels": [1.0, 0.0, 1.0]}

    async def coordinate(node: Node) -> float:
        await _here(node, 1)
        await node.sleep(1.5)
        node.send("a", Invite(0, 0, 0))
        return (await _arrivals(node, 1))["a"]

    async def answer(node: Node) -> None:
        await node.receive()
        node.send("coordinator", Pull(0, 0, 0))
        await _idle(node)

    fleet = fleet_of("a", link={**LINK, "quality": quality}, coordinator=CENTRE)
    assert _live(fleet, coordinate, answer).result < 10.0


def test_a_crash_loses_what_is_on_the_wire_and_frees_the_link() -> None:
    async def coordinate(node: Node) -> list[float]:
        await _here(node, 2)
        lost = node.send("a", _segment(100_000))
        transfer = node.send("b", _segment(4000))
        await lost
        sent_at = node.now()
        await transfer
        return [sent_at, node.now()]

    centre = {"link": {"up": "2000 B/s", "down": "2000 B/s", "latency": 0, "overhead": 0}}
    link = {"up": "2000 B/s", "down": "2000 B/s", "latency": 0, "overhead": 0}
    fleet = fleet_of("a", "b", link=link, coordinator=centre, faults=[{"kind": "crash", "device": "a", "at": 1}])
    assert _live(fleet, coordinate, _idle).result == pytest.approx([1.0, 1.0 + 3000 / 2000], abs=1e-9)


FOR_EVER = {"kind": "lose", "at": 0.5, "share": 0.5, "lasting": 1000}
FOR_LONG = {"kind": "lose", "at": 0.4, "share": 0.5, "lasting": 500}
FOR_A_MOMENT = {"kind": "lose", "at": 0.6, "share": 1.0, "lasting": 0.1}


@pytest.mark.parametrize(
    ("ours", "theirs", "faults", "through"),
    [
        pytest.param(0.5, 0.0, [], 0.5, id="one end"),
        pytest.param(0.5, 0.5, [], 0.25, id="both ends"),
        pytest.param(0.0, 0.0, [FOR_EVER], 0.5, id="a fault"),
        pytest.param(0.5, 0.0, [FOR_EVER], 0.25, id="one end and a fault"),
        pytest.param(0.5, 0.5, [FOR_EVER], 0.125, id="both ends and a fault"),
        pytest.param(0.0, 0.0, [FOR_EVER, FOR_LONG], 0.25, id="two faults at once"),
        pytest.param(0.0, 0.0, [FOR_EVER, FOR_A_MOMENT], 0.5, id="a fault that ends within another"),
    ],
)
def test_the_configured_fraction_of_messages_is_lost(
    ours: float, theirs: float, faults: list[dict[str, Any]], through: float
) -> None:
    """Causes of loss are independent: where either end loses half, a quarter arrives."""
    count = 2000

    async def coordinate(node: Node) -> int:
        await _here(node, 1)
        node.send("a", Invite(0, 0, 0))
        received = 0
        while (envelope := await node.receive(node.now() + 10)) is not None:
            received += isinstance(envelope.message, Pull)
        return received

    async def chatter(node: Node) -> None:
        for number in range(count):
            node.send("coordinator", Pull(number, 0, 0))
            await node.sleep(0.01)

    link = {"latency": 0.001, "loss": ours}
    centre = {"link": {"latency": 0.001, "loss": theirs}}
    counts = [
        _live(fleet_of("a", link=link, coordinator=centre, faults=faults), coordinate, chatter, seed=seed).result
        for seed in range(12)
    ]
    counts = [
        received for received in counts if received > 0
    ]  # if the invitation itself was lost there is nothing to count
    assert np.mean(counts) / count == pytest.approx(through, abs=0.03)


def test_messages_sent_at_the_same_instant_are_lost_independently() -> None:
    async def coordinate(node: Node) -> list[int]:
        await _here(node, 1)
        await node.sleep(1)
        for number in range(40):
            node.send("a", Invite(number, 0, 0))
        received = []
        while (envelope := await node.receive(5)) is not None:
            assert isinstance(envelope.message, Pull)
            received.append(envelope.message.turn)
        return received

    async def echo(node: Node) -> None:
        while True:
            envelope = await node.receive()
            assert envelope is not None
            assert isinstance(envelope.message, Invite)
            node.send("coordinator", Pull(envelope.message.turn, 0, 0))

    counts = [len(_live(fleet_of("a", link={"loss": 0.3}), coordinate, echo, seed=seed).result) for seed in range(5)]
    assert all(0 < count < 40 for count in counts)


# --- work in time -----------------------------------------------------------------------------------------------------

SPEED = {"kind": "piecewise", "at": [0, 10, 20], "levels": [1.0, 0.5, 0.0], "repeat": 30}


def _on_a_device(work: Callable[[Node], Any], speed: dict[str, Any]) -> list[Any]:
    """What a device of this speed reports; its work starts at 0."""
    link = {"latency": 0, "overhead": 0, "up": "unlimited", "down": "unlimited"}
    groups = [{"preset": "pi4", "name": "a", "link": link, "speed": speed}]
    noted: list[Any] = []

    async def coordinate(node: Node) -> None:
        await _here(node, 1)
        node.send("a", Invite(0, 0, 0))
        await node.receive()

    async def device(node: Node) -> None:
        await node.receive()
        assert node.now() == 0.0
        noted.append(await work(node))
        node.send("coordinator", Pull(0, 0, 0))
        await _idle(node)

    fleet = decode_settings({"devices": groups, "coordinator": {"link": link}}, Fleet)
    _live(fleet, coordinate, device)
    return noted


@pytest.mark.parametrize(("seconds", "end"), [(4.0, 4.0), (10.0, 10.0), (12.0, 14.0), (15.0, 20.0), (16.0, 31.0)])
def test_work_ends_when_the_speed_trace_says(seconds: float, end: float) -> None:
    async def work(node: Node) -> float:
        await node.compute(Work([Step(seconds)]))
        return node.now()

    assert _on_a_device(work, SPEED) == [end]


def test_steps_gates_and_signals_at_exact_times() -> None:
    """Full speed up to 10, half of it from there.

    step        cost  gate     begins  ends (signal)
    forward 0   3              0       3
    forward 1   2     at 6     6       8
    backward 1  4              8       14   (2 s at full speed, 2 s of work at half speed)
    backward 0  1              14      16
    """

    async def work(node: Node) -> list[tuple[str, float]]:
        events: list[tuple[str, float]] = []
        gate, signals = Latch(), [Latch() for _ in range(4)]
        for number, signal in enumerate(signals):
            signal.then(lambda number=number: events.append((f"signal {number}", node.now())))  # type: ignore[misc]
        asyncio.get_running_loop().call_at(6.0, gate.open)
        steps = [
            Step(3.0, signal=signals[0]),
            Step(2.0, gate=gate, signal=signals[1]),
            Step(4.0, signal=signals[2]),
            Step(1.0, signal=signals[3]),
        ]
        assert await node.compute(Work(steps, lambda pace: events.append(("run", node.now())) or 42)) == 42  # type: ignore[func-returns-value]
        return [*events, ("end", node.now())]

    assert _on_a_device(work, SPEED) == [
        [
            ("signal 0", 3.0),
            ("run", 8.0),  # starts after the last gate, needed by the first signal that follows
            ("signal 1", 8.0),
            ("signal 2", 14.0),
            ("signal 3", 16.0),
            ("end", 16.0),
        ]
    ]


@pytest.mark.parametrize(("opens", "end"), [(0.0, 7.0), (2.0, 7.0), (3.0, 7.0), (5.0, 9.0)])
def test_a_gate_that_opens_early_does_not_delay_the_work(opens: float, end: float) -> None:
    async def work(node: Node) -> float:
        gate = Latch()
        asyncio.get_running_loop().call_at(opens, gate.open)
        await node.compute(Work([Step(3.0), Step(4.0, gate=gate)]))
        return node.now()

    assert _on_a_device(work, {"kind": "constant"}) == [end]


def test_two_works_run_one_after_the_other() -> None:
    async def work(node: Node) -> list[float]:
        async def one() -> float:
            await node.compute(Work([Step(3.0)]))
            return node.now()

        return list(await asyncio.gather(one(), one()))

    assert _on_a_device(work, {"kind": "constant"}) == [[3.0, 6.0]]


def test_a_slowdown_fault_slows_the_work() -> None:
    async def coordinate(node: Node) -> float:
        await _here(node, 1)
        node.send("a", Invite(0, 0, 0))
        return (await _arrivals(node, 1))["a"]

    async def device(node: Node) -> None:
        await node.receive()
        await node.compute(Work([Step(5.0)]))
        node.send("coordinator", Pull(0, 0, 0))
        await _idle(node)

    link = {"latency": 0, "overhead": 0, "up": "unlimited", "down": "unlimited"}
    slow = [{"kind": "slow", "at": 2, "lasting": 4, "factor": 0.5}]  # 2 done, 2 more by 6, the last one by 7
    assert _live(fleet_of("a", link=link, faults=slow), coordinate, device).result == pytest.approx(7.0, abs=0.01)


def test_the_real_function_starts_before_it_is_due() -> None:
    """With a thread, work that starts at 0 and is due at 10 can be done long before it is due."""
    started = threading.Event()

    async def coordinate(node: Node) -> bool:
        work = asyncio.ensure_future(node.compute(Work([Step(10.0)], lambda pace: started.set())))
        await node.sleep(1)
        early = started.wait(5)
        await work
        assert node.now() == 10.0
        return early

    assert _live(fleet_of("a"), coordinate, _idle, threads=1).result


def test_cancelled_work_does_not_stop_the_threads() -> None:
    """A round that continues without a late device cancels its work; the pool must not wait for the result."""
    pool = ComputePool(1, max_untaken=1)

    async def coordinate(node: Node) -> bool:
        done, next_one = threading.Event(), threading.Event()

        def long_enough(pace: object) -> None:
            sleep(0.05)  # short work is not handed over to a thread
            done.set()

        work = asyncio.ensure_future(node.compute(Work([Step(10.0)], long_enough)))
        await node.sleep(1)
        assert done.wait(5)
        work.cancel()
        await node.sleep(1)
        pending = pool.submit(next_one.set, 0.0)
        started = next_one.wait(1)
        pending.take_result()
        return started

    try:
        assert virtual_clock.run_virtual_time(
            SimulatedWorld(fleet_of("a"), 0, _RecordingJournal(), pool).run(coordinate, _idle)
        )
    finally:
        pool.close()


def test_work_without_steps_runs_immediately() -> None:
    async def coordinate(node: Node) -> Any:
        return await node.compute(Work([], lambda pace: 3))

    assert _live(fleet_of("a"), coordinate, _idle).result == 3


# --- membership -------------------------------------------------------------------------------------------------------


def _events(fleet: Fleet, until: float, start: float = 0.0) -> list[tuple[float, str, str, int]]:
    """The membership events and their times."""

    async def coordinate(node: Node) -> list[tuple[float, str, str, int]]:
        events = []
        while (envelope := await node.receive(until)) is not None:
            message = envelope.message
            assert isinstance(message, Joined | Lost)
            events.append((node.now(), type(message).__name__, message.device, message.incarnation))
        return events

    events: list[tuple[float, str, str, int]] = _live(fleet, coordinate, _idle, start=start).result
    return events


def test_membership_at_exact_times() -> None:
    faults = [
        {"kind": "crash", "device": "a", "at": 2, "restart": 3},
        {"kind": "leave", "device": "b", "at": 4},
        {"kind": "partition", "device": "c", "at": 5, "lasting": 6},
        {"kind": "restart", "device": "d", "at": 7},
        {"kind": "join", "device": "e", "at": 8},
    ]
    fleet = fleet_of("a", "b", "c", "d", "e", faults=faults, notice=0.5, lease=2)
    assert _events(fleet, 20.0) == [
        (0.0, "Joined", "a", 1),
        (0.0, "Joined", "b", 1),
        (0.0, "Joined", "c", 1),
        (0.0, "Joined", "d", 1),
        (2.5, "Lost", "a", 1),
        (4.0, "Lost", "b", 1),
        (5.0, "Joined", "a", 2),
        (7.0, "Lost", "c", 1),
        (7.0, "Lost", "d", 1),
        (7.0, "Joined", "d", 2),
        (8.0, "Joined", "e", 1),
        (11.0, "Joined", "c", 1),
    ]


def test_a_crash_during_a_partition_is_noticed_at_the_lease() -> None:
    faults = [{"kind": "partition", "at": 2, "lasting": 20}, {"kind": "crash", "at": 3}]
    assert _events(fleet_of("a", faults=faults, notice=0.5, lease=5), 20.0)[1:] == [(7.0, "Lost", "a", 1)]


@pytest.mark.parametrize("start", [1.0, 3.5, 5.5, 9.0, 33.3])
def test_a_world_that_starts_later_is_in_the_same_state(start: float) -> None:
    faults = [
        {"kind": "crash", "device": "*", "every": "6 s", "restart": "2 s"},
        {"kind": "partition", "device": "b", "every": "9 s", "lasting": "3 s"},
    ]
    fleet = fleet_of("a", "b", "c", faults=faults, notice=0.1, lease=1)
    reference = _events(fleet, 60.0)
    later = _events(fleet, 60.0, start)
    assert [event for event in later if event[0] > start] == [event for event in reference if event[0] > start]
    members = {name: incarnation for _, kind, name, incarnation in later if kind == "Joined" and _ == start}
    before: dict[str, int] = {}
    for time, kind, name, incarnation in reference:
        if time <= start:
            before.update({name: incarnation}) if kind == "Joined" else before.pop(name, None)
    assert members == before


def test_a_crash_cancels_the_main_immediately() -> None:
    events: list[str] = []

    async def coordinate(node: Node) -> None:
        await _here(node, 1)
        node.send("a", Invite(0, 0, 0))
        await node.sleep(10)

    async def device(node: Node) -> None:
        await node.receive()
        try:
            events.append(f"life {node.incarnation}")
            await node.compute(Work([Step(100.0)], lambda pace: events.append("never wanted")))
        finally:
            events.append(f"over at {node.now():.1f}")

    _live(fleet_of("a", faults=[{"kind": "crash", "at": 3}]), coordinate, device)
    assert events == ["life 1", "over at 3.0"]


def test_an_exception_on_a_device_ends_the_run_and_names_the_device() -> None:
    async def coordinate(node: Node) -> None:
        await _here(node, 2)
        node.send("b", Invite(0, 0, 0))
        await node.sleep(1e9)

    async def device(node: Node) -> None:
        await node.receive()
        raise KeyError("salt")

    with pytest.raises(DeviceError, match="b: KeyError: 'salt'") as excinfo:
        _live(fleet_of("a", "b"), coordinate, device)
    assert 'raise KeyError("salt")' in excinfo.value.trace


def test_an_exception_of_the_coordinator_is_raised() -> None:
    async def coordinate(node: Node) -> None:
        raise LookupError("no guests")

    with pytest.raises(LookupError, match="no guests"):
        _live(fleet_of("a"), coordinate, _idle)


def test_the_journal_says_what_happened_to_the_fleet() -> None:
    faults = [{"kind": "crash", "at": 2, "restart": 1}, {"kind": "lose", "at": 4, "share": 0.5, "lasting": 1}]

    async def coordinate(node: Node) -> None:
        await node.sleep(10)

    records: list[Any] = _live(fleet_of("a", faults=faults), coordinate, _idle).records
    entries = [(record.node, record.name, record.at, record.fields["value"]) for record in records]
    assert entries == [
        ("a", "crash", 2.0, 1),
        ("a", "start", 3.0, 1),
        ("a", "lose", 4.0, 0.5),
        ("a", "lose", 5.0, -0.5),
    ]


def test_threads_do_not_change_the_journal() -> None:
    """Whatever real time the work takes, in any number of threads: the same virtual times and the same order."""

    async def coordinate(node: Node) -> list[tuple[float, str, float]]:
        await _here(node, 4)
        for name in "abcd":
            node.send(name, Invite(0, 0, 0))
        events: list[tuple[float, str, float]] = []
        while len(events) < 20:
            envelope = await node.receive()
            assert envelope is not None
            assert isinstance(envelope.message, Push)
            events.append((node.now(), envelope.sender, float(envelope.message.payload.arrays[0].sum())))
        return events

    async def device(node: Node) -> None:
        await node.receive()
        for number in range(5):
            rng = node.rng("turn", number)
            seconds = float(rng.uniform(0.5, 2))
            values = await node.compute(Work([Step(seconds)], lambda pace, rng=rng: rng.random(2000)))  # type: ignore[misc]
            await node.send(
                "coordinator", Push(Payload(values.nbytes, (values,)), turn=0, first=0, last=0, samples=1, loss=0.0)
            )
        await _idle(node)

    stories = [_live(fleet_of(*"abcd"), coordinate, device, seed=3, threads=threads).result for threads in (0, 1, 3)]
    assert stories[0] == stories[1] == stories[2]
    assert stories[0] != _live(fleet_of(*"abcd"), coordinate, device, seed=4).result


def test_a_device_without_messages_costs_nothing_and_is_announced() -> None:
    async def coordinate(node: Node) -> int:
        return len([await node.receive() for _ in range(3000)])

    fleet = fleet_of(*(f"d{n}" for n in range(3000)))
    assert _live(fleet, coordinate, _idle).result == 3000


def test_receive_without_a_deadline_waits_for_ever() -> None:
    async def coordinate(node: Node) -> Envelope | None:
        first = await node.receive(math.inf)
        assert first is not None
        return await node.receive(2.0)

    assert _live(fleet_of("a"), coordinate, _idle).result is None


def test_a_journal_on_disk_is_the_same_each_time(tmp_path: Path) -> None:
    faults = [{"kind": "crash", "every": "5 s", "restart": "1 s"}, {"kind": "lose", "every": "7 s"}]

    async def coordinate(node: Node) -> None:
        await node.sleep(200)

    written = []
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        with Journal(tmp_path / name) as journal:
            fleet = fleet_of("a", "b", faults=faults)
            virtual_clock.run_virtual_time(SimulatedWorld(fleet, seed, journal, ComputePool()).run(coordinate, _idle))
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1] != written[2]
    assert written[0].count(b"crash") > 20
