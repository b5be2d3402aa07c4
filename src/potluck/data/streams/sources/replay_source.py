"""The device's share of the task's own data, at the stream's rate and by the world's clock."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np

from potluck.data.streams.sources.stream_source import ReplayData, StreamIngest, StreamSource
from potluck.data.streams.stream_records import StreamSample

__all__ = ["ReplaySource", "replay_samples"]


class ReplaySource(StreamSource, frozen=True, kw_only=True, tag="replay"):
    """The device's own shard, replayed at `stream.rate`."""

    def samples(self, inlet: StreamIngest) -> AsyncIterator[StreamSample]:
        assert inlet.replay is not None, "a replay needs data"
        return replay_samples(inlet.replay, inlet)


async def replay_samples(stock: ReplayData, inlet: StreamIngest) -> AsyncIterator[StreamSample]:
    """Each sample at its moment; whoever is behind gets them at once."""
    number = stock.arrivals.arrived_by(inlet.clock.now())
    while (due := stock.arrivals.arrival_time(number + 1)) < float("inf"):
        if due > inlet.clock.now():
            await inlet.clock.sleep(due - inlet.clock.now())
        (found,) = stock.order.sample_ids(np.array([number]))
        yield StreamSample(stock.samples.x[found].numpy(), int(stock.samples.y[found]))
        number += 1
