from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from potluck.data import Dataset, from_tensors
from potluck.data.buffers import Persistence
from potluck.data.streams import ReplayFeed, Stream, pour
from potluck.data.streams.opening import ordered, stream_in
from potluck.data.streams.rates import Same
from potluck.units import Bytes

_SHARD = np.arange(5, 25)


class _Clock:
    """Ends the test once its time is over."""

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


def test_a_live_replay_brings_the_samples_of_the_simulated_one() -> None:
    stream, data = Stream(rate=Same(per_second=10), buffer=Persistence()), _data()
    live = stream_in(stream, data, _SHARD, "pi-0", 0, 7, _Clock(5.0))
    with pytest.raises(TimeoutError):
        asyncio.run(pour(live.samples, live.feed))
    order = ordered(_SHARD, "pi-0", 7)
    simulated = ReplayFeed(stream.rate.arrivals(0, 7), order, stream.buffer, data.train, data.train.labels)
    assert simulated.ready_at(1, 5.0) == 5.0
    assert live.feed.account.streamed == simulated.account.streamed == 50
    ours, theirs = live.feed.take(50, 5.0), simulated.take(50, 5.0)
    torch.testing.assert_close(live.feed.samples.batch(ours), simulated.samples.batch(theirs))


def test_memory_bounds_what_a_live_device_keeps() -> None:
    stream = Stream(rate=Same(per_second=10), buffer=Persistence(), memory=Bytes(40))
    live = stream_in(stream, _data(), _SHARD, "pi-0", 0, 7, _Clock(5.0))
    with pytest.raises(TimeoutError):
        asyncio.run(pour(live.samples, live.feed))
    live.feed.account.check()
    assert live.feed.account.buffered == 10
    assert live.feed.account.dropped == 40
