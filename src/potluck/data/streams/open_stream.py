"""A live device's end of its stream, put together from the job's words; the same samples as a simulated replay."""

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
    """`pour(samples, feed)` is the task that lets it run; the inlet counts what was refused."""

    feed: LiveFeed
    samples: AsyncIterator[StreamSample]
    ingest: StreamIngest


def stream_order(shard: Indices, device: str, seed: int) -> ReplayOrder:
    """In which order a device's share of the data streams in."""
    return ReplayOrder(shard, partial(seeds.child_generator, seed, device, "stream"))


def open_live_stream(
    stream: StreamSettings, data: Dataset, shard: Indices, device: str, place: int, seed: int, clock: StreamClock
) -> LiveStream:
    """The stream of the device that has this place in the fleet."""
    stock = ReplayData(data.train, stream_order(shard, device, seed), stream.rate.arrivals_of(place, seed))
    inlet = StreamIngest(device, SampleSpec.from_dataset(data), clock, float(stream.late), stock)
    store = SampleStore(data.train.scaling, data.train.augmentation)
    limit = stream.samples_in_memory(data.sample_bytes)
    return LiveStream(LiveFeed(stream.buffer, store, clock.now, limit, inlet), stream.source.samples(inlet), inlet)
