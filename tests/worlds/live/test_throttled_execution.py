"""Work in a thread takes as long as it would on the device, and waits at its gates."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from potluck.fleet.speed_curve import SpeedCurve
from potluck.loops.node import Latch, Pace, Step, Work
from potluck.worlds.live.compute_speed import ComputeSpeed, MeasuredSpeed, ModelledSpeed
from potluck.worlds.live.live_node import LiveNode
from potluck.worlds.live.peer_directory import NodeIdentity
from potluck.worlds.live.run_clock import RunClock, estimate_clock_offset
from tests.time_limits import within

IDENTITY = NodeIdentity(name="a", incarnation=1, era="e", seed=0, lease=1.0, limit_bytes=1 << 20)


def _compute(*works: Work, make_speed: Callable[[Callable[[], float]], ComputeSpeed]) -> tuple[list[Any], float]:
    """The results of the works, and how long they took together."""

    async def scenario() -> tuple[list[Any], float]:
        clock = RunClock()
        clock.start_now()
        node = LiveNode(IDENTITY, clock, make_speed(clock.now), lambda to, message: None, lambda record: None)
        started_at = time.monotonic()
        try:
            return [await node.compute(work) for work in works], time.monotonic() - started_at
        finally:
            await node.close()

    with within(10):
        return asyncio.run(scenario())


def _busy(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def _steps(seconds: float) -> Any:
    def run(pace: Pace) -> str:
        for step in range(2):
            pace.enter(step)
            _busy(seconds)
            pace.leave(step)
        return "done"

    return run


def _natural(now: Callable[[], float]) -> ComputeSpeed:
    return MeasuredSpeed()


def _throttled(now: Callable[[], float]) -> ComputeSpeed:
    return MeasuredSpeed(0.25)


def _full(now: Callable[[], float]) -> ComputeSpeed:
    return ModelledSpeed(SpeedCurve(iter([(math.inf, 1.0)])), now)


def _half(now: Callable[[], float]) -> ComputeSpeed:
    return ModelledSpeed(SpeedCurve(iter([(math.inf, 0.5)])), now)


@pytest.mark.parametrize(
    ("make_speed", "minimum"),
    [(_natural, 0.04), (_throttled, 0.16), (_half, 0.4)],
    ids=["natural", "throttled", "as modelled"],
)
@pytest.mark.wall_clock
def test_the_same_work_takes_longer_where_the_device_is_slower(make_speed: Any, minimum: float) -> None:
    value, seconds = _compute(Work([Step(0.1), Step(0.1)], _steps(0.02)), make_speed=make_speed)
    assert value == ["done"]
    assert minimum <= seconds < minimum + 0.15


@pytest.mark.wall_clock
def test_steps_that_the_function_does_not_enter_take_their_time_too() -> None:
    value, seconds = _compute(Work([Step(0.1), Step(0.1)], lambda pace: "done"), make_speed=_full)
    assert value == ["done"]
    assert 0.2 <= seconds < 0.35


def test_work_without_a_function_takes_the_time_of_its_steps() -> None:
    for make_speed, minimum in ((_natural, 0.1), (_throttled, 0.4), (_half, 0.2)):
        value, seconds = _compute(Work([Step(0.02), Step(0.08)]), make_speed=make_speed)
        assert value == [None]
        assert minimum <= seconds < minimum + 0.15


@pytest.mark.wall_clock
def test_a_cost_function_is_called_in_the_thread_when_the_step_starts() -> None:
    chosen: list[str] = []

    def choose() -> float:
        chosen.append(threading.current_thread().name)
        return 0.1

    _, seconds = _compute(Work([Step(choose), Step(choose)], _steps(0.0)), make_speed=_full)
    assert len(chosen) == 2
    assert all(name.startswith("potluck-work-a") for name in chosen)
    assert 0.2 <= seconds < 0.35


@pytest.mark.wall_clock
def test_cancelled_work_stops_at_its_next_step() -> None:
    entered: list[int] = []

    def run(pace: Pace) -> None:
        for step in range(100):
            pace.enter(step)
            entered.append(step)
            time.sleep(0.02)
            pace.leave(step)

    async def scenario() -> None:
        node = LiveNode(IDENTITY, RunClock(), MeasuredSpeed(), lambda to, message: None, lambda record: None)
        work = asyncio.create_task(node.compute(Work([Step(0.0)] * 100, run)))
        await asyncio.sleep(0.1)
        work.cancel()
        assert await node.compute(Work([Step(0.0)], lambda pace: "next")) == "next"
        await node.close()

    with within(5):
        asyncio.run(scenario())
    assert 1 <= len(entered) < 30


def test_a_signal_fires_on_the_event_loop_while_the_work_continues() -> None:
    async def scenario() -> tuple[str, bool]:
        node = LiveNode(IDENTITY, RunClock(), MeasuredSpeed(), lambda to, message: None, lambda record: None)
        gate, signal = Latch(), Latch()
        events: list[str] = []
        signal.then(lambda: events.append(threading.current_thread().name))
        work = asyncio.create_task(node.compute(Work([Step(0.0, signal=signal), Step(0.0, gate=gate)], _steps(0.0))))
        assert await signal.wait(2)
        still = not work.done()
        gate.open()
        await work
        await node.close()
        return events[0], still

    with within(5):
        assert asyncio.run(scenario()) == ("MainThread", True)


def test_a_device_knows_how_fast_it_is_now() -> None:
    now_s = [0.0]
    modelled = ModelledSpeed(SpeedCurve(iter([(5.0, 0.5), (math.inf, 0.25)])), lambda: now_s[0])
    assert [MeasuredSpeed().current_speed(), MeasuredSpeed(0.3).current_speed(), modelled.current_speed()] == [
        1.0,
        0.3,
        0.5,
    ]
    assert modelled.modelled_duration_s(4.0, 1.0) == 3.0
    now_s[0] = 6.0
    assert modelled.current_speed() == 0.25


@pytest.mark.wall_clock
def test_the_clock_offset_follows_the_fastest_answer() -> None:
    pauses = iter([0.05, 0.001, 0.02, 0.05, 0.0])

    def ask() -> float | None:
        pause = next(pauses)
        time.sleep(pause / 2)
        answer = time.monotonic() + 1000.0
        time.sleep(2 * pause)
        return answer if pause else None

    assert abs(estimate_clock_offset(ask) - 1000.0) < 0.005


@pytest.mark.wall_clock
def test_the_run_s_clock_stands_still_until_the_run_starts() -> None:
    clock = RunClock(initial_s=5.0)
    time.sleep(0.02)
    assert clock.now() == 5.0
    clock.start_now()
    assert 5.0 <= clock.now() < 5.02
