from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.worlds.simulated import virtual_clock
from potluck.worlds.simulated.simulated_network import (
    SimulatedChannel,
    SimulatedNetwork,
    SimulatedPipe,
    SimulatedTransfer,
    fair_rates,
)

# --- how links are shared ---------------------------------------------------------------------------------------------


@st.composite
def flows(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Transfers over up pipes 0 … 4 and down pipes 5 … 9; capacities over five orders of magnitude, some equal."""
    count = draw(st.integers(1, 12))
    ups = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    downs = draw(st.lists(st.integers(5, 9), min_size=count, max_size=count))
    level = st.one_of(st.sampled_from([1.0, 2.0, 3.0, 6.0]), st.floats(0.01, 1000))
    capacity = draw(st.lists(level, min_size=10, max_size=10))
    return np.array(ups), np.array(downs), np.array(capacity)


def _reference_rates(ups: np.ndarray, downs: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """The textbook algorithm: the pipe with the smallest fair rate fixes its transfers, one pipe at a time."""
    paths = [{int(up), int(down)} for up, down in zip(ups, downs, strict=True)]
    rates = [math.nan] * len(paths)
    left = capacity.astype(float).tolist()
    while any(map(math.isnan, rates)):
        waiting = [n for n, rate in enumerate(rates) if math.isnan(rate)]
        users = {pipe: [n for n in waiting if pipe in paths[n]] for n in waiting for pipe in paths[n]}
        narrow = min(users, key=lambda pipe: left[pipe] / len(users[pipe]))
        fair_rate = left[narrow] / len(users[narrow])
        for n in users[narrow]:
            rates[n] = fair_rate
            for pipe in paths[n]:
                left[pipe] -= fair_rate
    return np.array(rates)


Flows = tuple[np.ndarray, np.ndarray, np.ndarray]


@settings(deadline=None)
@given(flows=flows())
def test_rates_equal_those_of_pipe_by_pipe_filling(flows: Flows) -> None:
    np.testing.assert_allclose(fair_rates(*flows), _reference_rates(*flows), rtol=1e-9)


@settings(deadline=None)
@given(flows=flows())
def test_no_pipe_is_overfull_and_every_transfer_has_a_bottleneck(flows: Flows) -> None:
    """Max-min fair: each transfer crosses a full pipe on which none is faster; it gains only if a slower one loses."""
    ups, downs, capacity = flows
    rates = fair_rates(*flows)
    load = np.bincount(ups, rates, len(capacity)) + np.bincount(downs, rates, len(capacity))
    assert (load <= capacity * (1 + 1e-9)).all()
    for up, down, rate in zip(ups, downs, rates, strict=True):
        assert rate > 0
        held_up = [
            pipe
            for pipe in (up, down)
            if load[pipe] >= capacity[pipe] * (1 - 1e-9)
            and rate >= rates[(ups == pipe) | (downs == pipe)].max() * (1 - 1e-9)
        ]
        assert held_up


@settings(deadline=None)
@given(flows=flows(), scale=st.floats(1e-6, 1e6))
def test_links_twice_as_wide_carry_twice_as_much(flows: Flows, scale: float) -> None:
    ups, downs, capacity = flows
    np.testing.assert_allclose(fair_rates(ups, downs, capacity * scale), fair_rates(*flows) * scale, rtol=1e-9)


@settings(deadline=None)
@given(flows=flows(), data=st.data())
def test_the_order_of_transfers_does_not_matter(flows: Flows, data: st.DataObject) -> None:
    ups, downs, capacity = flows
    order = np.array(data.draw(st.permutations(range(len(ups)))))
    np.testing.assert_allclose(fair_rates(ups[order], downs[order], capacity), fair_rates(*flows)[order], rtol=1e-9)


def test_a_star_of_uneven_devices() -> None:
    """Devices of 1, 2 and 100 share the coordinator's 10: what the slow ones cannot use goes to the fast one."""
    rates = fair_rates(np.zeros(3, int), np.array([1, 2, 3]), np.array([10.0, 1.0, 2.0, 100.0]))
    assert rates.tolist() == [1.0, 2.0, 7.0]


def test_an_unlimited_pipe_is_never_the_bottleneck() -> None:
    rates = fair_rates(np.zeros(2, int), np.array([1, 2]), np.array([math.inf, 3.0, 4.0]))
    assert rates.tolist() == [3.0, 4.0]


@pytest.mark.filterwarnings("error")
def test_an_unlimited_transfer_does_not_affect_the_others() -> None:
    rates = fair_rates(np.array([0, 0, 3]), np.array([1, 2, 2]), np.array([math.inf, math.inf, 10.0, 1.0]))
    assert rates.tolist() == [math.inf, 9.0, 1.0]


# --- transfers in time ------------------------------------------------------------------------------------------------


class _Wire:
    """A network, and a record of everything that left it."""

    def __init__(self) -> None:
        self.network = SimulatedNetwork()
        self.seen: dict[str, tuple[float, bool]] = {}
        self._keys = iter(range(1000))

    def channel(self, up: SimulatedPipe, down: SimulatedPipe, overhead: float = 0.0) -> SimulatedChannel:
        return SimulatedChannel(self.network, next(self._keys), up, down, overhead)

    def put(self, channel: SimulatedChannel, name: str, nbytes: float) -> SimulatedTransfer:
        loop = asyncio.get_running_loop()
        return channel.queue_transfer(nbytes, lambda completed: self.seen.__setitem__(name, (loop.time(), completed)))


def _play(
    scenario: Callable[[_Wire], Coroutine[Any, Any, None]], seconds: float = 1e6
) -> dict[str, tuple[float, bool]]:
    async def main() -> dict[str, tuple[float, bool]]:
        wire = _Wire()
        await scenario(wire)
        await asyncio.sleep(seconds)
        return wire.seen

    return virtual_clock.run_virtual_time(main())


def _at(time: float, action: Callable[..., object], *args: Any) -> None:
    asyncio.get_running_loop().call_at(time, action, *args)


def test_one_transfer_goes_at_the_speed_of_the_narrower_pipe() -> None:
    async def scenario(wire: _Wire) -> None:
        wire.put(wire.channel(SimulatedPipe(10.0), SimulatedPipe(4.0)), "a", 20.0)

    assert _play(scenario) == {"a": (5.0, True)}


def test_two_transfers_share_a_link_fairly() -> None:
    async def scenario(wire: _Wire) -> None:
        up = SimulatedPipe(10.0)
        wire.put(wire.channel(up, SimulatedPipe(100.0)), "short", 10.0)  # at 5/s until 2 s
        wire.put(wire.channel(up, SimulatedPipe(100.0)), "long", 40.0)  # 10 by then, the other 30 at 10/s

    assert _play(scenario) == {"short": (2.0, True), "long": (5.0, True)}


def test_a_later_transfer_slows_the_first_one_down() -> None:
    async def scenario(wire: _Wire) -> None:
        down = SimulatedPipe(10.0)
        wire.put(wire.channel(SimulatedPipe(100.0), down), "first", 40.0)
        late = wire.channel(SimulatedPipe(100.0), down)
        _at(2.0, lambda: wire.put(late, "late", 20.0))  # both at 5/s until 6 s

    assert _play(scenario) == {"first": (6.0, True), "late": (6.0, True)}


def test_both_directions_do_not_share() -> None:
    async def scenario(wire: _Wire) -> None:
        wire.put(wire.channel(SimulatedPipe(10.0), SimulatedPipe(10.0)), "there", 10.0)
        wire.put(wire.channel(SimulatedPipe(10.0), SimulatedPipe(10.0)), "back", 10.0)

    assert _play(scenario) == {"there": (1.0, True), "back": (1.0, True)}


def test_a_channel_carries_one_transfer_at_a_time_each_with_its_overhead() -> None:
    async def scenario(wire: _Wire) -> None:
        channel = wire.channel(SimulatedPipe(10.0), SimulatedPipe(10.0), overhead=0.5)
        for name in "abc":
            wire.put(channel, name, 10.0)

    assert _play(scenario) == {"a": (1.5, True), "b": (3.0, True), "c": (4.5, True)}


def test_an_overhead_takes_time_and_no_bandwidth() -> None:
    async def scenario(wire: _Wire) -> None:
        up = SimulatedPipe(10.0)
        wire.put(wire.channel(up, SimulatedPipe(100.0)), "plain", 30.0)
        wire.put(wire.channel(up, SimulatedPipe(100.0), overhead=1.0), "later", 20.0)  # from 1 s on both at 5/s

    assert _play(scenario) == {"plain": (5.0, True), "later": (5.0, True)}


@pytest.mark.parametrize("when", [0.25, 0.5, 1.0])
def test_a_broken_connection_loses_everything_queued_or_in_flight(when: float) -> None:
    """During the overhead of the first (up to 0.5 s) and while it is in flight."""

    async def scenario(wire: _Wire) -> None:
        up = SimulatedPipe(10.0)
        broken = wire.channel(up, SimulatedPipe(100.0), overhead=0.5)
        wire.put(wire.channel(up, SimulatedPipe(100.0)), "other", 30.0)
        _at(when, broken.drop_transfers)
        for name in "ab":
            wire.put(broken, name, 1000.0)

    outcomes = _play(scenario)
    assert outcomes["a"] == outcomes["b"] == (when, False)
    shared = max(when - 0.5, 0.0)
    assert outcomes["other"][0] == pytest.approx(3.0 + shared / 2)
    assert outcomes["other"][1]


def test_a_connection_can_be_used_again_after_it_broke() -> None:
    async def scenario(wire: _Wire) -> None:
        channel = wire.channel(SimulatedPipe(10.0), SimulatedPipe(10.0), overhead=0.5)
        wire.put(channel, "lost", 10.0)
        _at(0.25, channel.drop_transfers)
        _at(0.25, lambda: wire.put(channel, "again", 10.0))

    assert _play(scenario) == {"lost": (0.25, False), "again": (1.75, True)}


@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("when", [0.1, 1.0, 2.9])
def test_a_cancelled_transfer_frees_its_bandwidth(name: str, when: float) -> None:
    """Three in a queue, each half a second of overhead and one second of bytes."""
    end_times = {"a": 1.5, "b": 3.0, "c": 4.5}

    async def scenario(wire: _Wire) -> None:
        channel = wire.channel(SimulatedPipe(10.0), SimulatedPipe(10.0), overhead=0.5)
        transfers = {name: wire.put(channel, name, 10.0) for name in end_times}
        _at(when, channel.cancel_transfer, transfers[name])

    outcomes = _play(scenario)
    if when > end_times[name]:
        assert outcomes == {name: (at, True) for name, at in end_times.items()}
        return
    started_at = max(
        when, end_times[name] - 1.5
    )  # those behind it begin when it is cancelled, or when their turn has come
    after = {other: started_at + 1.5 * index for index, other in enumerate((n for n in end_times if n > name), 1)}
    before = {other: at for other, at in end_times.items() if other < name}
    assert {other: at for other, (at, _) in outcomes.items()} == pytest.approx({**before, **after})


def test_a_pipe_resized_during_a_transfer() -> None:
    async def scenario(wire: _Wire) -> None:
        up = SimulatedPipe(10.0)
        wire.put(wire.channel(up, SimulatedPipe(100.0)), "a", 40.0)
        _at(1.0, wire.network.resize_pipe, up, 5.0)  # 30 left
        _at(3.0, wire.network.resize_pipe, up, 40.0)  # 20 left
        _at(3.0, wire.network.resize_pipe, SimulatedPipe(1.0), 2.0)  # nobody's

    assert _play(scenario) == {"a": (3.5, True)}


def test_a_pipe_resized_at_the_instant_a_transfer_ends() -> None:
    async def scenario(wire: _Wire) -> None:
        up = SimulatedPipe(10.0)
        _at(4.0, wire.network.resize_pipe, up, 1e-3)
        wire.put(wire.channel(up, SimulatedPipe(100.0)), "a", 40.0)

    assert _play(scenario) == {"a": (4.0, True)}


def test_a_connection_that_breaks_at_the_instant_of_the_end_does_not_end_the_others() -> None:
    async def scenario(wire: _Wire) -> None:
        up = SimulatedPipe(10.0)
        breaking = wire.channel(up, SimulatedPipe(100.0))
        _at(2.0, breaking.drop_transfers)  # set first, so it comes first
        wire.put(breaking, "short", 10.0)
        wire.put(wire.channel(up, SimulatedPipe(100.0)), "long", 1000.0)

    assert _play(scenario) == {"short": (2.0, False), "long": (101.0, True)}


def test_a_connection_that_breaks_at_the_instant_of_the_end_when_it_is_alone() -> None:
    async def scenario(wire: _Wire) -> None:
        breaking = wire.channel(SimulatedPipe(10.0), SimulatedPipe(10.0))
        _at(2.0, breaking.drop_transfers)
        wire.put(breaking, "short", 20.0)

    assert _play(scenario) == {"short": (2.0, False)}


def test_an_empty_transfer_takes_no_time() -> None:
    async def scenario(wire: _Wire) -> None:
        channel = wire.channel(SimulatedPipe(10.0), SimulatedPipe(10.0))
        wire.put(channel, "empty", 0.0)
        wire.put(channel, "next", 10.0)

    assert _play(scenario) == {"empty": (0.0, True), "next": (1.0, True)}


@pytest.mark.filterwarnings("error")
def test_unlimited_links_take_no_time() -> None:
    async def scenario(wire: _Wire) -> None:
        up = SimulatedPipe(math.inf)
        wire.put(wire.channel(up, SimulatedPipe(math.inf)), "fast", 1e12)
        wire.put(wire.channel(up, SimulatedPipe(10.0)), "slow", 10.0)

    assert _play(scenario) == {"fast": (0.0, True), "slow": (1.0, True)}


def test_more_transfers_at_once_than_the_tables_first_hold() -> None:
    async def scenario(wire: _Wire) -> None:
        up = SimulatedPipe(300.0)
        for number in range(300):
            wire.put(wire.channel(up, SimulatedPipe(1000.0)), f"{number}", 10.0)

    outcomes = _play(scenario)
    assert len(outcomes) == 300
    assert {time for time, _ in outcomes.values()} == {10.0}


@settings(max_examples=40, deadline=None)
@given(
    puts=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 20), st.floats(0.1, 100)), min_size=1, max_size=12
    ),
    breaks=st.lists(st.tuples(st.integers(0, 15), st.floats(0, 20)), max_size=4),
    capacity=st.lists(st.floats(0.5, 50), min_size=8, max_size=8),
)
def test_every_transfer_ends_once_and_no_byte_is_faster_than_its_links(
    puts: list[tuple[int, int, float, float]], breaks: list[tuple[int, float]], capacity: list[float]
) -> None:
    ends: dict[int, list[tuple[float, bool]]] = {number: [] for number in range(len(puts))}

    async def scenario(wire: _Wire) -> None:
        loop = asyncio.get_running_loop()
        pipes = [SimulatedPipe(level) for level in capacity]
        channels = [wire.channel(pipes[n // 4], pipes[4 + n % 4]) for n in range(16)]
        for number, (up, down, start, nbytes) in enumerate(puts):
            channel = channels[4 * up + down]
            noted = ends[number]
            tell = lambda completed, noted=noted: noted.append((loop.time(), completed))  # noqa: E731
            _at(start, channel.queue_transfer, nbytes, tell)
        for index, time in breaks:
            _at(time, channels[index].drop_transfers)

    _play(scenario)
    for number, (up, down, start, nbytes) in enumerate(puts):
        ((end, completed),) = ends[number]
        if completed:
            assert end >= start + nbytes / min(capacity[up], capacity[4 + down]) * (1 - 1e-9)
        else:
            assert any(index == 4 * up + down and end == time for index, time in breaks)
