"""What every world must guarantee: the contract of `potluck.loops.node` as tests.

The tests of a world subclass `NodeConformance` and provide `make_world`. Since a world may run each node in its own
process, the devices' mains are plain functions of this module that share nothing but messages with the coordinator's,
and a device sends only after it received a message. Times are counted in ticks, with a tolerance of `slack`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import pytest

from potluck.fleet import Fleet
from potluck.journal import Instant, JournalRecord
from potluck.loops.messages import HEADER_BYTES, Invite, Joined, Lost, Message, Pull, Push, Release, Segment
from potluck.loops.node import Envelope, Latch, MeasuredTransfer, Node, Pace, Step, Work
from potluck.payload import Payload
from potluck.settings import decode_settings

__all__ = ["Ended", "MakeWorld", "NodeConformance", "fleet_of"]

Main = Callable[[Node], Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class Ended:
    """The outcome of a run: the result of the coordinator's main, and the journal."""

    result: Any
    records: list[JournalRecord] = field(default_factory=list)


class MakeWorld(Protocol):
    """Runs a coordinator and the devices of a fleet until the coordinator's main returns."""

    def __call__(self, fleet: Fleet, coordinator: Main, device: Main, *, seed: int = 0) -> Ended: ...


def fleet_of(*names: str, link: dict[str, Any] | None = None, **more: Any) -> Fleet:
    """A fleet of identical devices with these names."""
    groups = [{"preset": "pi4", "name": name, "link": link or "lan"} for name in names]
    return decode_settings({"devices": groups, **more}, Fleet)


# --- what the nodes do ------------------------------------------------------------------------------------------------


async def _next(node: Node, *kinds: type[Message], until: float = math.inf) -> Envelope | None:
    """The next message of one of these kinds; others are skipped."""
    while (envelope := await node.receive(None if math.isinf(until) else until)) is not None:
        if isinstance(envelope.message, kinds):
            return envelope
    return None


async def _all(node: Node, until: float, *kinds: type[Message]) -> list[Envelope]:
    """Every message of these kinds that arrives until then."""
    messages = []
    while (envelope := await _next(node, *kinds, until=until)) is not None:
        messages.append(envelope)
    return messages


def _push_of(*values: float) -> Push:
    array = np.array(values, dtype=np.float64)
    return Push(Payload(array.nbytes, (array,)), turn=0, first=0, last=0, samples=1, loss=0.0)


async def _next_values(node: Node, until: float = math.inf) -> list[float]:
    """The next array that a device sends."""
    envelope = await _next(node, Push, until=until)
    assert envelope is not None, "nothing arrived"
    assert isinstance(envelope.message, Push)
    return [float(number) for number in envelope.message.payload.arrays[0]]


async def _joined(node: Node, count: int) -> list[str]:
    """Wait until this many devices have joined."""
    names: list[str] = []
    while len(names) < count:
        envelope = await _next(node, Joined)
        assert envelope is not None
        assert isinstance(envelope.message, Joined)
        names.append(envelope.message.device)
    return names


async def _idle(node: Node) -> None:
    """A device that receives and never sends."""
    while True:
        await node.receive()


async def _echo(node: Node) -> None:
    """A device that answers every invitation with a pull of the same numbers, and every pull with a release."""
    while True:
        envelope = await _next(node, Invite, Pull)
        assert envelope is not None
        match envelope.message:
            case Invite(turn=turn, round=first, count=last):
                await node.send(envelope.sender, Pull(turn, first, last))
            case Pull(turn=turn):
                await node.send(envelope.sender, Release(turn))


async def _burst(node: Node) -> None:
    """Asked with a number, sends that many small messages, then that many bulky ones."""
    envelope = await _next(node, Invite)
    assert envelope is not None
    assert isinstance(envelope.message, Invite)
    for number in range(envelope.message.count):
        await node.send(envelope.sender, Pull(number, 0, 0))
    for number in range(envelope.message.count):
        await node.send(envelope.sender, _push_of(number, *range(number)))
    await _idle(node)


async def _beat(node: Node) -> None:
    """Once asked, sends the time and a counter every so many milliseconds."""
    envelope = await _next(node, Invite)
    assert envelope is not None
    assert isinstance(envelope.message, Invite)
    for number in range(10_000):
        await node.send(envelope.sender, Pull(number, node.incarnation, 0))
        await node.sleep(envelope.message.count / 1000)


async def _draw(node: Node) -> None:
    """Sends random numbers that depend only on the seed, its name and the branch."""
    envelope = await _next(node, Invite)
    assert envelope is not None
    node.rng("other").random(100)
    draws = [*node.rng("a").random(3), *node.rng("a").random(3), *node.rng("a", 1).random(3), *node.rng("b").random(3)]
    await node.send(envelope.sender, _push_of(*draws))
    await _idle(node)


async def _keep(node: Node) -> None:
    """Reports how many messages, not counting the first, were waiting after so many milliseconds."""
    envelope = await _next(node, Invite)
    assert envelope is not None
    assert isinstance(envelope.message, Invite)
    await node.sleep(envelope.message.count / 1000)
    turns = [pull.message.turn for pull in await _all(node, node.now(), Pull) if isinstance(pull.message, Pull)]
    await node.send(envelope.sender, _push_of(*turns))
    await _idle(node)


async def _reflect(node: Node) -> None:
    """Sends back the arrays that it gets."""
    envelope = await _next(node, Segment)
    assert envelope is not None
    assert isinstance(envelope.message, Segment)
    payload = envelope.message.payload
    await node.send(envelope.sender, Push(payload, turn=1, first=0, last=3, samples=5, loss=0.25))
    await _idle(node)


async def _send_twice(node: Node) -> None:
    """Asked with a number, sends two messages of that many bytes at once, and a third when it is asked again."""
    for count in (2, 1):
        envelope = await _next(node, Invite)
        assert envelope is not None
        assert isinstance(envelope.message, Invite)
        for _ in range(count):
            node.send(envelope.sender, _push_of(*[0.0] * (envelope.message.count // 8)))
    await _idle(node)


async def _confirm(node: Node) -> None:
    """Acknowledges every segment."""
    while True:
        envelope = await _next(node, Segment)
        assert envelope is not None
        assert isinstance(envelope.message, Segment)
        await node.send(envelope.sender, Release(envelope.message.turn))


class _EventLog:
    """What happened, in order, with the time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.entries: list[tuple[str, float]] = []

    def note(self, label: str) -> None:
        self.entries.append((label, self._node.now()))

    def names(self) -> list[str]:
        return [label for label, _ in self.entries]

    def time(self, label: str) -> float:
        return dict(self.entries)[label]


def _steps_done(steps: int) -> Callable[[Pace], str]:
    """A function that enters and leaves its steps in the given order."""

    def run(pace: Pace) -> str:
        for step in range(steps):
            pace.enter(step)
            pace.leave(step)
        return "done"

    return run


# --- what must hold ---------------------------------------------------------------------------------------------------


class NodeConformance:
    """Subclass it with a `make_world` fixture."""

    tick: ClassVar[float] = 1.0
    slack: ClassVar[float] = 1e-6

    @pytest.fixture
    def make_world(self) -> MakeWorld:
        raise NotImplementedError

    def _membership(self, make_world: MakeWorld, faults: list[dict[str, Any]], ticks: float) -> list[tuple[str, int]]:
        """The membership events that the coordinator gets within so many ticks, without the first Joined."""
        tick = self.tick

        async def coordinate(node: Node) -> list[tuple[str, int]]:
            await _joined(node, 1)
            events = await _all(node, ticks * tick, Joined, Lost)
            return [(type(event).__name__, event.incarnation) for event in (envelope.message for envelope in events)]  # type: ignore[attr-defined]

        fleet = fleet_of("a", faults=faults, lease=2 * tick, notice=0.1 * tick)
        result: list[tuple[str, int]] = make_world(fleet, coordinate, _idle).result
        return result

    def _at(self, kind: str, ticks: float, **more: Any) -> dict[str, Any]:
        """A fault at so many ticks; its durations are in ticks too."""
        times = {key: value * self.tick for key, value in more.items() if key in ("restart", "back", "lasting")}
        return {"kind": kind, "at": ticks * self.tick, **more, **times}

    # time

    def test_time_passes_during_sleep(self, make_world: MakeWorld) -> None:
        tick = self.tick

        async def coordinate(node: Node) -> list[float]:
            times = [node.now()]
            for ticks in (0.0, 1.0, 0.5):
                await node.sleep(ticks * tick)
                times.append(node.now())
            return times

        first, none, one, half = make_world(fleet_of("a"), coordinate, _idle).result
        assert first >= 0
        assert 0 <= none - first <= self.slack
        assert tick <= one - none <= tick + self.slack
        assert tick / 2 <= half - one <= tick / 2 + self.slack

    # messages

    def test_a_message_arrives_complete_with_its_sender(self, make_world: MakeWorld) -> None:
        async def coordinate(node: Node) -> list[Envelope]:
            await _joined(node, 2)
            answers = []
            for number, device in enumerate(["b", "a"]):
                await node.send(device, Invite(7 + number, 2, 2**40))
                answer = await _next(node, Pull)
                assert answer is not None
                answers.append(answer)
            return answers

        answers = make_world(fleet_of("a", "b"), coordinate, _echo).result
        assert answers == [Envelope("b", 1, Pull(7, 2, 2**40)), Envelope("a", 1, Pull(8, 2, 2**40))]

    def test_messages_of_a_kind_arrive_in_order(self, make_world: MakeWorld) -> None:
        async def coordinate(node: Node) -> tuple[list[int], list[list[float]]]:
            await _joined(node, 1)
            await node.send("a", Invite(0, 0, 20))
            small: list[int] = []
            bulky: list[list[float]] = []
            while len(small) < 20 or len(bulky) < 20:
                envelope = await _next(node, Pull, Push)
                assert envelope is not None
                match envelope.message:
                    case Pull(turn=turn):
                        small.append(turn)
                    case Push(payload=payload):
                        bulky.append(payload.arrays[0].tolist())
            return small, bulky

        small, bulky = make_world(fleet_of("a"), coordinate, _burst).result
        assert small == list(range(20))
        assert bulky == [[number, *range(number)] for number in range(20)]

    def test_arrays_arrive_bit_for_bit(self, make_world: MakeWorld) -> None:
        arrays: tuple[Any, ...] = (
            np.array([0.1, -0.0, 1e-45, 3e38], dtype=np.float32),
            np.arange(5000, dtype=np.float64) / 7,
        )

        async def coordinate(node: Node) -> Push:
            await _joined(node, 1)
            payload = Payload(sum(array.nbytes for array in arrays), arrays)
            await node.send("a", Segment(payload, turn=1, first=0, last=3))
            envelope = await _next(node, Push)
            assert envelope is not None
            assert isinstance(envelope.message, Push)
            return envelope.message

        push = make_world(fleet_of("a"), coordinate, _reflect).result
        assert (push.turn, push.first, push.last, push.samples, push.loss) == (1, 0, 3, 5, 0.25)
        assert push.payload.nbytes == sum(array.nbytes for array in arrays)
        for sent, received in zip(arrays, push.payload.arrays, strict=True):
            assert received.dtype == sent.dtype
            assert received.tobytes() == sent.tobytes()

    def test_receive_returns_at_its_deadline(self, make_world: MakeWorld) -> None:
        tick = self.tick

        async def coordinate(node: Node) -> list[float]:
            await _joined(node, 1)
            started_at = node.now()
            assert await node.receive(started_at + tick) is None
            waited = node.now() - started_at
            assert await node.receive(started_at) is None
            return [waited, node.now() - started_at - waited]

        waited, again = make_world(fleet_of("a"), coordinate, _idle).result
        assert tick - 1e-9 <= waited <= tick + self.slack
        assert again <= self.slack

    def test_messages_wait_while_a_device_is_busy(self, make_world: MakeWorld) -> None:
        tick = self.tick

        async def coordinate(node: Node) -> list[float]:
            await _joined(node, 1)
            await node.send("a", Invite(0, 0, int(2000 * tick)))
            for turn in (5, 6, 7):
                await node.send("a", Pull(turn, 0, 0))
            return await _next_values(node)

        assert make_world(fleet_of("a"), coordinate, _keep).result == [5.0, 6.0, 7.0]

    def test_a_waiting_message_is_returned_even_after_the_deadline(self, make_world: MakeWorld) -> None:
        tick = self.tick

        async def coordinate(node: Node) -> Envelope | None:
            await _joined(node, 1)
            await node.send("a", Invite(1, 2, 3))
            await node.sleep(tick)
            return await node.receive(0.0)

        assert make_world(fleet_of("a"), coordinate, _echo).result == Envelope("a", 1, Pull(1, 2, 3))

    def test_a_cancelled_send_does_not_arrive_and_frees_the_link(self, make_world: MakeWorld) -> None:
        tick = self.tick
        slow = {"up": f"{1000 / tick} B/s", "down": f"{1000 / tick} B/s", "latency": 0, "overhead": 0}

        async def coordinate(node: Node) -> list[Any]:
            await _joined(node, 1)
            big = Payload(100_000, (np.zeros(12_500),))
            sending = asyncio.ensure_future(node.send("a", Segment(big, turn=0, first=0, last=0)))
            await node.sleep(tick)
            sending.cancel()
            await node.send("a", Segment(Payload(8, (np.zeros(1),)), turn=1, first=0, last=0))
            envelope = await _next(node, Release)
            assert envelope is not None
            return [envelope.message, node.now()]

        message, now = make_world(fleet_of("a", link=slow), coordinate, _confirm).result
        assert message == Release(1)
        assert now < 50 * tick

    def test_a_transfer_is_timed_without_its_latency_and_without_waiting_for_others(
        self, make_world: MakeWorld
    ) -> None:
        tick, nbytes = self.tick, 80_000
        link = {"up": f"{nbytes / tick} B/s", "down": "unlimited", "latency": 2 * tick, "overhead": tick / 2}
        fast = {"up": "unlimited", "down": "unlimited", "latency": 0, "overhead": 0}

        async def coordinate(node: Node) -> list[MeasuredTransfer | None]:
            await _joined(node, 1)
            measured: list[MeasuredTransfer | None] = []
            for count in (2, 1):
                node.send("a", Invite(0, 0, nbytes))
                for _ in range(count):
                    envelope = await _next(node, Push)
                    assert envelope is not None
                    measured.append(envelope.transfer)
            return measured

        fleet = fleet_of("a", link=link, coordinator={"link": fast})
        for transfer in make_world(fleet, coordinate, _send_twice).result:
            assert transfer.nbytes == nbytes + HEADER_BYTES
            assert 1.45 * tick <= transfer.seconds <= 1.55 * tick + self.slack
            assert transfer.overhead_s == tick / 2, "the emulated overhead is known"

    # work

    def test_work_returns_the_result_of_its_function(self, make_world: MakeWorld) -> None:
        async def coordinate(node: Node) -> tuple[Any, Any]:
            result = await node.compute(Work([Step(0.0), Step(0.0)], _steps_done(2)))
            return result, await node.compute(Work([Step(0.0)]))

        assert make_world(fleet_of("a"), coordinate, _idle).result == ("done", None)

    def test_an_exception_of_the_function_is_raised(self, make_world: MakeWorld) -> None:
        def burn(pace: Pace) -> None:
            raise ZeroDivisionError("burnt")

        async def coordinate(node: Node) -> str:
            try:
                await node.compute(Work([Step(0.0)], burn))
            except ZeroDivisionError as error:
                assert await node.compute(Work([Step(0.0)], lambda pace: 3)) == 3
                return str(error)
            return "nothing happened"

        assert make_world(fleet_of("a"), coordinate, _idle).result == "burnt"

    def test_works_run_one_at_a_time_in_order(self, make_world: MakeWorld) -> None:
        async def coordinate(node: Node) -> list[str]:
            log, gate = _EventLog(node), Latch()

            async def work(name: str, first: Latch | None) -> None:
                steps = [Step(0.0, gate=first), Step(0.0)]
                await node.compute(Work(steps, _steps_done(2)))
                log.note(name)

            tasks = [asyncio.ensure_future(work("held up", gate)), asyncio.ensure_future(work("behind", None))]
            await node.sleep(self.tick)
            log.note("opened")
            gate.open()
            await asyncio.gather(*tasks)
            return log.names()

        assert make_world(fleet_of("a"), coordinate, _idle).result == ["opened", "held up", "behind"]

    def test_a_step_waits_for_its_gate_and_fires_its_signal(self, make_world: MakeWorld) -> None:
        tick = self.tick

        async def coordinate(node: Node) -> _EventLog:
            log = _EventLog(node)
            gates, signals = [Latch(), Latch()], [Latch(), Latch(), Latch()]
            for number, signal in enumerate(signals):
                signal.then(lambda number=number: log.note(f"signal {number}"))  # type: ignore[misc]
            steps = [
                Step(0.0, gate=gates[0], signal=signals[0]),
                Step(0.0, signal=signals[1]),
                Step(0.0, gate=gates[1], signal=signals[2]),
            ]
            work = asyncio.ensure_future(node.compute(Work(steps, _steps_done(3))))
            for number, gate in enumerate(gates):
                await node.sleep(tick)
                log.note(f"gate {number}")
                gate.open()
            assert await work == "done"
            log.note("done")
            return log

        log = make_world(fleet_of("a"), coordinate, _idle).result
        names = log.names()
        assert sorted(names) == ["done", "gate 0", "gate 1", "signal 0", "signal 1", "signal 2"]
        assert names.index("gate 0") < names.index("signal 0") < names.index("signal 1") < names.index("signal 2")
        assert names.index("gate 1") < names.index("signal 2") < names.index("done")
        assert log.time("done") <= log.time("gate 1") + tick / 2 + self.slack

    def test_a_timed_step_knows_when_it_began_and_ended(self, make_world: MakeWorld) -> None:
        """Whether or not anything waits for it: between two gates, and after the last."""
        tick = self.tick

        async def coordinate(node: Node) -> tuple[list[float], list[float]]:
            gates = [Latch(), Latch()]
            steps = [Step(0.0, gate=gates[0]), Step(0.0, timed=True), Step(0.0, gate=gates[1]), Step(0.0, timed=True)]
            work, opened = asyncio.ensure_future(node.compute(Work(steps, _steps_done(4)))), []
            for gate in gates:
                await node.sleep(tick)
                opened.append(node.now())
                gate.open()
            await work
            return opened, [steps[1].began or 0.0, steps[1].ended, steps[3].began or 0.0, steps[3].ended, node.now()]

        opened, (began, first, second_began, second, done) = make_world(fleet_of("a"), coordinate, _idle).result
        assert opened[0] <= began <= first <= opened[0] + tick / 2 + self.slack
        assert opened[1] <= second_began <= second <= done

    def test_cancelled_work_lets_the_next_one_run(self, make_world: MakeWorld) -> None:
        tick = self.tick

        async def coordinate(node: Node) -> list[Any]:
            blocked = asyncio.ensure_future(node.compute(Work([Step(0.0, gate=Latch()), Step(0.0)])))
            await node.sleep(tick)
            blocked.cancel()
            started_at = node.now()
            return [await node.compute(Work([Step(0.0)], lambda pace: "next")), node.now() - started_at]

        result, seconds = make_world(fleet_of("a"), coordinate, _idle).result
        assert result == "next"
        assert seconds <= tick / 2 + self.slack

    # random numbers and records

    def _draws(self, make_world: MakeWorld, seed: int, *names: str) -> dict[str, list[float]]:
        async def coordinate(node: Node) -> dict[str, list[float]]:
            await _joined(node, len(names))
            draws = {}
            for name in names:
                await node.send(name, Invite(0, 0, 0))
                draws[name] = await _next_values(node)
            return draws

        draws: dict[str, list[float]] = make_world(fleet_of(*names), coordinate, _draw, seed=seed).result
        return draws

    def test_random_numbers_depend_only_on_seed_name_and_branch(self, make_world: MakeWorld) -> None:
        both, alone = self._draws(make_world, 1, "a", "b"), self._draws(make_world, 1, "b")
        assert both["b"] == alone["b"]
        assert both["a"] != both["b"]
        assert self._draws(make_world, 2, "b")["b"] != alone["b"]
        once, again, deeper, other = (alone["b"][n : n + 3] for n in (0, 3, 6, 9))
        assert once == again
        assert len({*once, *deeper, *other}) == 9

    def test_records_are_in_the_journal(self, make_world: MakeWorld) -> None:
        async def coordinate(node: Node) -> None:
            node.record(Instant(node.name, "toast", 0.5, {"glasses": 3}))

        assert (
            Instant("coordinator", "toast", 0.5, {"glasses": 3}) in make_world(fleet_of("a"), coordinate, _idle).records
        )

    # membership

    def test_every_connected_device_is_announced(self, make_world: MakeWorld) -> None:
        async def coordinate(node: Node) -> list[str]:
            return sorted(await _joined(node, 3))

        assert make_world(fleet_of("a", "b", "c"), coordinate, _idle).result == ["a", "b", "c"]

    def test_a_device_that_joins_later_is_announced_then(self, make_world: MakeWorld) -> None:
        tick = self.tick

        async def coordinate(node: Node) -> list[Any]:
            first = await _joined(node, 1)
            early = node.now()
            return [first, early, await _joined(node, 1), node.now()]

        fleet = fleet_of("a", "b", faults=[{**self._at("join", 3), "device": "b"}])
        first, early, second, late = make_world(fleet, coordinate, _idle).result
        assert (first, second) == (["a"], ["b"])
        assert early < 3 * tick <= late <= 4 * tick + self.slack

    def test_a_crash_is_noticed(self, make_world: MakeWorld) -> None:
        assert self._membership(make_world, [self._at("crash", 2)], 5) == [("Lost", 1)]

    def test_a_device_that_leaves_is_lost(self, make_world: MakeWorld) -> None:
        assert self._membership(make_world, [self._at("leave", 2)], 5) == [("Lost", 1)]

    def test_a_returning_device_has_a_new_incarnation(self, make_world: MakeWorld) -> None:
        for fault in (self._at("crash", 2, restart=2), self._at("leave", 2, back=2)):
            assert self._membership(make_world, [fault], 7) == [("Lost", 1), ("Joined", 2)]

    def test_a_device_that_restarts_immediately_is_lost_first_and_then_joins(self, make_world: MakeWorld) -> None:
        assert self._membership(make_world, [self._at("restart", 2)], 5) == [("Lost", 1), ("Joined", 2)]
        twice = [self._at("restart", 2), self._at("restart", 4)]
        expected = [("Lost", 1), ("Joined", 2), ("Lost", 2), ("Joined", 3)]
        assert self._membership(make_world, twice, 7) == expected

    def test_a_short_partition_is_not_noticed_and_a_long_one_is(self, make_world: MakeWorld) -> None:
        """The lease is two ticks."""
        assert self._membership(make_world, [self._at("partition", 2, lasting=1)], 7) == []
        events = self._membership(make_world, [self._at("partition", 2, lasting=4)], 9)
        assert [kind for kind, _ in events] == ["Lost", "Joined"]

    def test_two_short_partitions_are_not_a_long_one(self, make_world: MakeWorld) -> None:
        """Silent for a tick, back for half a tick, silent for a tick again: never as long as the lease."""
        faults = [self._at("partition", 2, lasting=1), self._at("partition", 3.5, lasting=1)]
        assert self._membership(make_world, faults, 9) == []

    def test_a_device_that_restarts_during_a_partition_joins_when_it_ends(self, make_world: MakeWorld) -> None:
        faults = [self._at("partition", 2, lasting=5), self._at("restart", 3)]
        assert self._membership(make_world, faults, 12) == [("Lost", 1), ("Joined", 2)]

    def test_a_partition_within_another_does_not_end_it(self, make_world: MakeWorld) -> None:
        """From 2 to 8, and from 3 to 4: lost at 4, back at 8."""
        faults = [self._at("partition", 2, lasting=6), self._at("partition", 3, lasting=1)]
        assert [kind for kind, _ in self._membership(make_world, faults, 7)] == ["Lost"]
        assert [kind for kind, _ in self._membership(make_world, faults, 11)] == ["Lost", "Joined"]

    # message loss

    def _beats(self, make_world: MakeWorld, faults: list[dict[str, Any]], ticks: float) -> list[tuple[float, int]]:
        """When the counters of a device arrived, in ticks, and from which incarnation."""
        tick = self.tick

        async def coordinate(node: Node) -> list[tuple[float, int]]:
            heartbeats = []
            while (envelope := await node.receive(ticks * tick)) is not None:
                if isinstance(envelope.message, Joined):
                    await node.send("a", Invite(0, 0, int(200 * tick)))
                elif isinstance(envelope.message, Pull):
                    assert envelope.incarnation == envelope.message.first
                    heartbeats.append((node.now() / tick, envelope.incarnation))
            return heartbeats

        fleet = fleet_of("a", faults=faults, lease=2 * tick, notice=0.1 * tick)
        result: list[tuple[float, int]] = make_world(fleet, coordinate, _beat).result
        return result

    def test_after_a_crash_nothing_arrives_until_the_next_incarnation(self, make_world: MakeWorld) -> None:
        heartbeats = self._beats(make_world, [self._at("crash", 3, restart=2)], 8)
        assert {incarnation for time, incarnation in heartbeats if time < 3} == {1}
        assert not [time for time, _ in heartbeats if 3.1 + self.slack < time < 5]
        assert {incarnation for time, incarnation in heartbeats if time > 5} == {2}
        assert len(heartbeats) > 20

    def test_a_cut_link_carries_nothing_and_the_device_keeps_running(self, make_world: MakeWorld) -> None:
        heartbeats = self._beats(make_world, [self._at("partition", 3, lasting=1.5)], 8)
        assert not [time for time, _ in heartbeats if 3.1 + self.slack < time < 4.5]
        assert {incarnation for _, incarnation in heartbeats} == {1}
        assert len([time for time, _ in heartbeats if time > 4.5]) > 5

    def test_messages_are_lost_while_the_script_says_so(self, make_world: MakeWorld) -> None:
        heartbeats = self._beats(make_world, [self._at("lose", 3, lasting=2, share=1.0)], 8)
        assert not [time for time, _ in heartbeats if 3.1 + self.slack < time < 5]
        assert len([time for time, _ in heartbeats if time < 3]) > 5
        assert len([time for time, _ in heartbeats if time > 5]) > 5

    def test_messages_to_a_dead_incarnation_do_not_reach_the_next(self, make_world: MakeWorld) -> None:
        tick = self.tick

        async def coordinate(node: Node) -> list[Envelope]:
            await _joined(node, 1)
            await node.sleep(3 * tick - node.now())
            await node.send("a", Invite(1, 0, 0))
            await node.send("a", Segment(Payload(8, (np.zeros(1),)), turn=1, first=0, last=0))
            await _joined(node, 1)
            await node.send("a", Invite(2, 0, 0))
            return await _all(node, 8 * tick, Pull)

        fleet = fleet_of("a", faults=[self._at("crash", 2, restart=3)], notice=0.1 * tick)
        assert make_world(fleet, coordinate, _echo).result == [Envelope("a", 2, Pull(2, 0, 0))]

    def test_a_restarted_device_has_an_empty_inbox(self, make_world: MakeWorld) -> None:
        tick = self.tick

        async def coordinate(node: Node) -> list[float]:
            await _joined(node, 1)
            await node.send("a", Invite(0, 0, int(9000 * tick)))  # it reads its inbox in nine ticks
            await node.send("a", Pull(1, 0, 0))
            await _joined(node, 1)
            await node.send("a", Invite(0, 0, int(1000 * tick)))
            await node.send("a", Pull(2, 0, 0))
            return await _next_values(node)

        fleet = fleet_of("a", faults=[self._at("restart", 2)], notice=0.1 * tick)
        assert make_world(fleet, coordinate, _keep).result == [2.0]

    def test_the_same_seed_loses_the_same_messages(self, make_world: MakeWorld) -> None:
        faults = [self._at("lose", 1, lasting=100, share=0.5)]
        first = [round(5 * time) for time, _ in self._beats(make_world, faults, 8)]
        assert first == [round(5 * time) for time, _ in self._beats(make_world, faults, 8)]
        assert 8 < len(first) < 36
