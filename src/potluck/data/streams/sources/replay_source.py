"""Replay source: the device's shard of the task's data at the stream's rate, on the world's clock."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np

from potluck.data.streams.sources.stream_source import ReplayData, StreamIngest, StreamSource
from potluck.data.streams.stream_records import StreamSample

__all__ = ["ReplaySource", "replay_samples"]


class ReplaySource(StreamSource, frozen=True, kw_only=True, tag="replay"):
    """The device's own shard, replayed at `stream.rate`."""

    def samples(self, ingest: StreamIngest) -> AsyncIterator[StreamSample]:
        assert ingest.replay is not None, "a replay needs data"
        return replay_samples(ingest.replay, ingest)


async def replay_samples(replay: ReplayData, ingest: StreamIngest) -> AsyncIterator[StreamSample]:
    """Yield each sample when it is due; overdue samples come at once."""
    number = replay.arrivals.arrived_by(ingest.clock.now())
    while (due := replay.arrivals.arrival_time(number + 1)) < float("inf"):
        if due > ingest.clock.now():
            await ingest.clock.sleep(due - ingest.clock.now())
        (sample_id,) = replay.order.sample_ids(np.array([number]))
        yield StreamSample(replay.samples.x[sample_id].numpy(), int(replay.samples.y[sample_id]))
        number += 1
