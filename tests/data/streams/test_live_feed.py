from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck import seeds
from potluck.data import Samples, Scaling
from potluck.data.buffers import BufferPolicy, PersistencePolicy, TruncationPolicy, ValuePolicy
from potluck.data.streams import (
    LiveFeed,
    ReplayData,
    ReplayOrder,
    SampleSpec,
    SampleStore,
    StreamIngest,
    StreamSample,
    run_source,
)
from potluck.data.streams.live_feed import ArrivalRate
from potluck.data.streams.sources import PythonSource, ReplaySource
from potluck.data.streams.stream_rates import ConstantRate
from potluck.errors import DataError, SettingError


class _Clock:
    """A clock that advances only during sleeps."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


def _sample(value: int) -> StreamSample:
    return StreamSample(np.full((2,), value % 256, np.uint8), value % 3)


def _feed(policy: BufferPolicy, clock: _Clock | None = None, limit: int = 50) -> LiveFeed:
    return LiveFeed(policy, SampleStore(), (clock or _Clock()).now, limit)


@pytest.mark.parametrize("policy", [PersistencePolicy(), TruncationPolicy(), ValuePolicy()])
@given(steps=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 70)), max_size=8))
@settings(max_examples=30)
def test_memory_bound_and_accounting_hold_for_any_arrivals(policy: BufferPolicy, steps: list[tuple[int, int]]) -> None:
    clock, value = _Clock(), 0
    feed = _feed(policy, clock)
    for count, want in steps:
        for _ in range(count):
            clock.time += 0.02
            feed.put_sample(_sample(value))
            value += 1
            feed.account.check_balance()
            assert feed.account.buffered <= 50
            assert len(feed.samples) <= 2 * (50 + 70) + 16
        ready = feed.ready_at(want, clock.now())
        assert (ready == clock.now()) == (feed.account.buffered >= min(want, 50))
        taken = feed.take_samples(want, clock.now())
        x, y = feed.samples.batch(taken) if len(taken) else (torch.zeros(0, 2), torch.zeros(0))
        assert x[:, 0].tolist() == [number % 256 for number in taken.tolist()]
        assert y.tolist() == [number % 3 for number in taken.tolist()]
        feed.account.check_balance()


def test_a_batch_stays_valid_while_new_samples_arrive() -> None:
    feed = _feed(TruncationPolicy())
    feed.ready_at(4, 0.0)
    for value in range(10):
        feed.put_sample(_sample(value))
    taken = feed.take_samples(4, 0.0)
    assert taken.tolist() == [6, 7, 8, 9]
    for value in range(10, 500):
        feed.put_sample(_sample(value))
    assert feed.samples.batch(taken)[0][:, 0].tolist() == taken.tolist()


def test_batches_are_scaled_as_the_task_defines() -> None:
    feed = LiveFeed(PersistencePolicy(), SampleStore(Scaling((0.5,), (0.5,), 255.0)), _Clock().now, 9)
    feed.put_sample(StreamSample(np.array([255, 0], np.uint8), 1))
    x, _ = feed.samples.batch(feed.take_samples(1, 0.0))
    assert x.tolist() == [[1.0, -1.0]]


def test_a_waiting_consumer_is_woken_once_enough_samples_arrived() -> None:
    feed, woken = _feed(PersistencePolicy()), []
    assert feed.ready_at(3, 0.0) == math.inf
    feed.call_when_ready(3, lambda: woken.append(feed.account.buffered))
    for value in range(5):
        feed.put_sample(_sample(value))
    assert woken == [3]
    feed.call_when_ready(2, lambda: woken.append(-1))
    assert woken == [3, -1], "at once, if it is there already"


def test_after_a_restart_the_account_continues_and_the_samples_are_gone() -> None:
    feed = _feed(PersistencePolicy())
    for value in range(5):
        feed.put_sample(_sample(value))
    feed.take_samples(2, 0.0)
    reborn = _feed(PersistencePolicy())
    reborn.restore_state(feed.save_state())
    reborn.put_sample(_sample(5))
    reborn.account.check_balance()
    assert (reborn.account.streamed, reborn.account.dropped, reborn.account.buffered) == (6, 3, 1)
    assert reborn.take_samples(1, 0.0).tolist() == [5]


@pytest.mark.parametrize("per_second", [3.0, 80.0])
def test_the_arrival_rate_converges_and_follows_changes(per_second: float) -> None:
    rate, now = ArrivalRate(), 0.0
    assert rate.rate_at(0.0) == 0.0
    for factor in (1.0, 2.5):
        end = now + 25
        while now < end:
            now += 1 / (factor * per_second)
            rate.count_arrival(now)
        assert rate.rate_at(now) == pytest.approx(factor * per_second, rel=0.15)
    assert rate.rate_at(now + 30) < 0.05 * per_second


def _inlet(clock: _Clock) -> StreamIngest:
    samples = Samples(torch.arange(20, dtype=torch.uint8).view(10, 2), torch.arange(10) % 3)
    order = ReplayOrder(np.arange(10), lambda number: seeds.child_generator(0, number))
    stock = ReplayData(samples, order, ConstantRate(per_second=4.0).arrivals_of(0, 0))
    return StreamIngest("pi-0", SampleSpec.labelled((2,), "u1", 3), clock, replay=stock)


async def _first(samples: AsyncIterator[StreamSample], count: int) -> list[StreamSample]:
    collected: list[StreamSample] = []
    async for sample in samples:
        collected.append(sample)
        if len(collected) == count:
            break
    return collected


def test_a_replay_delivers_each_sample_at_its_time() -> None:
    clock = _Clock()
    inlet = _inlet(clock)
    samples = asyncio.run(_first(ReplaySource().samples(inlet), 10))
    assert clock.now() == 2.5
    assert sorted(sample.row or 0 for sample in samples) == list(range(10))


def test_a_source_fills_a_feed() -> None:
    async def some() -> AsyncIterator[StreamSample]:
        for value in range(4):
            yield _sample(value)

    feed = _feed(PersistencePolicy())
    asyncio.run(run_source(some(), feed))
    assert feed.account.streamed == 4


def test_the_rest_of_an_ended_stream_is_used_before_the_end_is_reported() -> None:
    async def some() -> AsyncIterator[StreamSample]:
        for value in range(5):
            yield _sample(value)

    feed, woken = _feed(PersistencePolicy()), []
    feed.call_when_ready(9, lambda: woken.append(True))
    asyncio.run(run_source(some(), feed))
    assert woken == [True], "nobody waits for what will not come"
    assert feed.ready_at(4, 0.0) == 0.0
    feed.take_samples(4, 0.0)
    with pytest.raises(DataError, match="the stream has ended; 1 samples are left of the 4 for a batch"):
        feed.ready_at(4, 0.0)


async def thermometer(device: str) -> AsyncIterator[object]:
    """A user-defined stream with some invalid samples."""
    assert device == "pi-0"
    yield np.array([1, 2], np.uint8), 1
    yield "nonsense"
    yield np.array([1, 2, 3], np.uint8), 1
    yield np.array([1, 2], np.uint8), "one"
    yield torch.tensor([3, 4], dtype=torch.uint8), torch.tensor(2)


def no_stream(device: str) -> int:
    return 3


async def broken(device: str) -> AsyncIterator[object]:
    yield np.array([1, 2], np.uint8), 1
    raise OSError("unplugged")


def test_a_user_generator_is_a_source() -> None:
    inlet = _inlet(_Clock())
    samples = asyncio.run(_first(PythonSource(generator=f"{__name__}:thermometer").samples(inlet), 99))
    assert [(sample.x.tolist(), sample.y) for sample in samples] == [([1, 2], 1), ([3, 4], 2)]
    assert inlet.refusals.malformed == 3


def test_a_failing_generator_is_named_with_its_error() -> None:
    feed, source = _feed(PersistencePolicy()), PythonSource(generator=f"{__name__}:broken")
    with pytest.raises(DataError, match=r"test_live_feed:broken' failed: OSError: unplugged"):
        asyncio.run(run_source(source.samples(_inlet(_Clock())), feed))
    assert feed.account.streamed == 1, "what came before it is there"


@pytest.mark.parametrize(("name", "error"), [("no_stream", DataError), ("nowhere", SettingError)])
def test_an_object_that_is_not_a_generator_is_refused(name: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=name):
        asyncio.run(_first(PythonSource(generator=f"{__name__}:{name}").samples(_inlet(_Clock())), 1))
