"""Opens a live device's stream from the job's settings; a replay gives the same samples as in the simulated world."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

from potluck import seeds
from potluck.data.samples import Dataset, Indices
from potluck.data.streams.live_feed import LiveFeed, SampleStore
from potluck.data.streams.replay_feed import ReplayOrder
from potluck.data.streams.settings import StreamSettings
from potluck.data.streams.sources import ReplayData, StreamClock, StreamIngest
from potluck.data.streams.stream_records import SampleSpec, StreamSample

__all__ = ["LiveStream", "open_live_stream", "stream_order"]


class LiveStream(NamedTuple):
    """`run_source(samples, feed)` runs it; `ingest` counts refused records."""

    feed: LiveFeed
    samples: AsyncIterator[StreamSample]
    ingest: StreamIngest


def stream_order(shard: Indices, device: str, seed: int) -> ReplayOrder:
    """The order in which a device's shard streams in."""
    return ReplayOrder(shard, partial(seeds.child_generator, seed, device, "stream"))


def open_live_stream(
    stream: StreamSettings, data: Dataset, shard: Indices, device: str, index: int, seed: int, clock: StreamClock
) -> LiveStream:
    """Open the stream of the device with this index in the fleet."""
    replay = ReplayData(data.train, stream_order(shard, device, seed), stream.rate.arrivals_of(index, seed))
    ingest = StreamIngest(device, SampleSpec.from_dataset(data), clock, float(stream.late), replay)
    store = SampleStore(data.train.scaling, data.train.augmentation)
    limit = stream.samples_in_memory(data.sample_bytes)
    return LiveStream(LiveFeed(stream.buffer, store, clock.now, limit, ingest), stream.source.samples(ingest), ingest)
