from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from potluck.data import Dataset, from_tensors
from potluck.data.buffers import PersistencePolicy
from potluck.data.streams import ReplayData, ReplayFeed, StreamSettings, run_source
from potluck.data.streams.stream_rates import ConstantRate
from potluck.run.device_streams import open_live_stream, stream_order
from potluck.units import Bytes

_SHARD = np.arange(5, 25)


class _Clock:
    """A clock that ends the test when its time is up."""

    def __init__(self, seconds: float) -> None:
        self._time = 0.0
        self._end = seconds

    def now(self) -> float:
        return self._time

    async def sleep(self, seconds: float) -> None:
        self._time += seconds
        if self._time > self._end:
            raise TimeoutError


def _data() -> Dataset:
    x, y = torch.arange(120, dtype=torch.uint8).view(30, 4), torch.arange(30) % 3
    return from_tensors(x, y, x, y)


def _replay(stream: StreamSettings, data: Dataset) -> ReplayData:
    return ReplayData(data.train, stream_order(_SHARD, "pi-0", 7), stream.rate.arrivals_of(0, 7))


def test_a_live_replay_brings_the_samples_of_the_simulated_one() -> None:
    stream, data = StreamSettings(rate=ConstantRate(per_second=10), buffer=PersistencePolicy()), _data()
    live = open_live_stream(stream, data, "pi-0", _replay(stream, data), _Clock(5.0))
    with pytest.raises(TimeoutError):
        asyncio.run(run_source(live.samples, live.feed))
    order = stream_order(_SHARD, "pi-0", 7)
    simulated = ReplayFeed(stream.rate.arrivals_of(0, 7), order, stream.buffer, data.train, data.train.labels)
    assert simulated.ready_at(1, 5.0) == 5.0
    assert live.feed.account.streamed == simulated.account.streamed == 50
    ours, theirs = live.feed.take_samples(50, 5.0), simulated.take_samples(50, 5.0)
    torch.testing.assert_close(live.feed.samples.batch(ours), simulated.samples.batch(theirs))


def test_memory_bounds_what_a_live_device_keeps() -> None:
    stream = StreamSettings(rate=ConstantRate(per_second=10), buffer=PersistencePolicy(), memory=Bytes(40))
    data = _data()
    live = open_live_stream(stream, data, "pi-0", _replay(stream, data), _Clock(5.0))
    with pytest.raises(TimeoutError):
        asyncio.run(run_source(live.samples, live.feed))
    live.feed.account.check_balance()
    assert live.feed.account.buffered == 10
    assert live.feed.account.dropped == 40
