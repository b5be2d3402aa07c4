from __future__ import annotations

import asyncio
import gc
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.worlds.simulated import virtual_clock
from tests.time_limits import within


def _fired(delays: list[float], start: float = 0.0) -> list[tuple[float, int]]:
    """When each of the timers fires, in order."""

    async def scenario() -> list[tuple[float, int]]:
        loop = asyncio.get_running_loop()
        events: list[tuple[float, int]] = []
        for number, delay in enumerate(delays):
            loop.call_at(start + delay, lambda number: events.append((loop.time(), number)), number)
        await asyncio.sleep(max(delays, default=0.0) + 1.0)
        return events

    return virtual_clock.run_virtual_time(scenario(), start)


@settings(deadline=None)
@given(delays=st.lists(st.one_of(st.integers(0, 5).map(float), st.floats(0, 1e6)), max_size=20))
def test_timers_fire_at_exactly_their_time_and_ties_in_the_order_they_were_set(delays: list[float]) -> None:
    assert _fired(delays) == sorted((delay, number) for number, delay in enumerate(delays))


@settings(deadline=None)
@given(start=st.floats(0, 1e9), delays=st.lists(st.floats(0, 1e3), max_size=5))
def test_a_clock_may_start_at_any_time(start: float, delays: list[float]) -> None:
    assert _fired(delays, start) == sorted((start + delay, number) for number, delay in enumerate(delays))


def test_a_simulated_year_passes_immediately() -> None:
    async def scenario() -> float:
        await asyncio.sleep(365 * 86400.0)
        return asyncio.get_running_loop().time()

    with within(2):
        assert virtual_clock.run_virtual_time(scenario()) == 365 * 86400.0


def test_time_stands_still_while_a_callback_is_ready() -> None:
    async def scenario() -> float:
        for _ in range(100):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert virtual_clock.run_virtual_time(scenario(), 5.0) == 5.0


def test_a_timer_in_the_past_fires_now_and_time_does_not_go_back() -> None:
    async def scenario() -> list[float]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(10)
        events: list[float] = []
        loop.call_at(3.0, lambda: events.append(loop.time()))
        await asyncio.sleep(1)
        return [*events, loop.time()]

    assert virtual_clock.run_virtual_time(scenario()) == [10.0, 11.0]


def test_due_timers_fire_before_those_they_set_for_now() -> None:
    async def scenario() -> list[str]:
        loop, events = asyncio.get_running_loop(), list[str]()

        def first() -> None:
            events.append("first")
            loop.call_later(0.0, events.append, "later set")
            loop.call_soon(events.append, "soon")

        loop.call_at(1.0, first)
        loop.call_at(1.0, events.append, "second")
        await asyncio.sleep(2)
        return events

    assert virtual_clock.run_virtual_time(scenario()) == ["first", "second", "soon", "later set"]


def test_a_cancelled_timer_does_not_fire_nor_move_the_clock() -> None:
    async def scenario() -> tuple[list[str], float]:
        loop, events = asyncio.get_running_loop(), list[str]()
        loop.call_at(1.0, events.append, "cancelled").cancel()
        other = loop.call_at(2.0, events.append, "cancelled at its own instant")
        loop.call_at(2.0, other.cancel)
        by_earlier = loop.call_at(3.0, events.append, "cancelled by one that fires before")
        loop.call_at(2.5, by_earlier.cancel)
        loop.call_at(4.0, events.append, "fired")
        await asyncio.sleep(4)
        await asyncio.sleep(0)
        return events, loop.time()

    events, now = virtual_clock.run_virtual_time(scenario())
    assert events == ["cancelled at its own instant", "fired"]
    assert now == 4.0


def test_the_first_of_two_simultaneous_timers_may_cancel_the_second() -> None:
    async def scenario() -> list[str]:
        loop, events = asyncio.get_running_loop(), list[str]()
        handles: list[asyncio.Handle] = []
        loop.call_at(1.0, lambda: handles[0].cancel())
        handles.append(loop.call_at(1.0, events.append, "second"))
        await asyncio.sleep(2)
        return events

    assert virtual_clock.run_virtual_time(scenario()) == []


def test_cancelled_timers_do_not_pile_up() -> None:
    """Every message that arrives cancels a timeout of half an hour."""

    async def scenario() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_clock.VirtualLoop)
        for _ in range(20_000):
            timer = loop.call_later(1800.0, print)
            await asyncio.sleep(0.001)
            timer.cancel()
        return len(loop._timers)

    assert virtual_clock.run_virtual_time(scenario()) < 1000


def test_timeouts_work() -> None:
    async def scenario() -> tuple[float, bool]:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await loop.create_future()
        done = await asyncio.wait_for(asyncio.sleep(1, True), 5)
        return loop.time(), done

    assert virtual_clock.run_virtual_time(scenario()) == (4.0, True)


def test_tasks_locks_queues_and_gather_work() -> None:
    async def scenario() -> list[tuple[str, float]]:
        loop, events = asyncio.get_running_loop(), list[tuple[str, float]]()
        lock: asyncio.Lock = asyncio.Lock()

        async def worker(name: str, seconds: float) -> None:
            async with lock:
                await asyncio.sleep(seconds)
                events.append((name, loop.time()))

        await asyncio.gather(worker("a", 3), worker("b", 1), worker("c", 2))
        return events

    assert virtual_clock.run_virtual_time(scenario()) == [("a", 3.0), ("b", 4.0), ("c", 6.0)]


def test_a_deadlock_raises() -> None:
    async def scenario() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(virtual_clock.SimulationDeadlockError, match="no timer is set"):
        virtual_clock.run_virtual_time(scenario())


def test_an_exception_of_main_is_raised() -> None:
    async def scenario() -> None:
        await asyncio.sleep(1)
        raise KeyError("salt")

    with pytest.raises(KeyError, match="salt"):
        virtual_clock.run_virtual_time(scenario())


def test_an_exception_in_a_timer_ends_the_run() -> None:
    async def scenario() -> None:
        def burn() -> None:
            raise RuntimeError("burnt")

        asyncio.get_running_loop().call_at(1.0, burn)
        await asyncio.sleep(5)

    with pytest.raises(RuntimeError, match="burnt"):
        virtual_clock.run_virtual_time(scenario())


def test_remaining_tasks_are_cancelled_and_may_clean_up() -> None:
    cleaned: list[str] = []

    async def guest(name: str) -> None:
        try:
            await asyncio.sleep(math.inf if name == "a" else 1000)
        finally:
            await asyncio.sleep(1)
            cleaned.append(name)

    async def scenario() -> str:
        tasks = [asyncio.ensure_future(guest(name)) for name in ("a", "b")]
        await asyncio.sleep(1)
        assert not any(task.done() for task in tasks)
        return "over"

    assert virtual_clock.run_virtual_time(scenario()) == "over"
    assert sorted(cleaned) == ["a", "b"]


def test_a_run_without_remaining_tasks_ends() -> None:
    async def scenario() -> int:
        return 3

    assert virtual_clock.run_virtual_time(scenario()) == 3


def test_the_garbage_collector_s_settings_are_restored() -> None:
    async def scenario() -> None:
        await asyncio.sleep(1)

    before = gc.get_freeze_count(), gc.isenabled()
    virtual_clock.run_virtual_time(scenario())
    assert (gc.get_freeze_count(), gc.isenabled()) == before


def test_two_runs_are_identical() -> None:
    async def scenario() -> list[tuple[int, float]]:
        loop, events = asyncio.get_running_loop(), list[tuple[int, float]]()

        async def walk(number: int) -> None:
            for step in range(5):
                await asyncio.sleep((number * 7 + step * 3) % 4)
                events.append((number, loop.time()))

        await asyncio.gather(*(walk(number) for number in range(6)))
        return events

    assert virtual_clock.run_virtual_time(scenario()) == virtual_clock.run_virtual_time(scenario())
