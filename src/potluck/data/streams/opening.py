"""A live device's end of its stream, put together from the job's words; the same samples as a simulated replay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

from potluck import seeds
from potluck.data.samples import Dataset, Indices
from potluck.data.streams.live import LiveFeed, Store
from potluck.data.streams.records import Expected, Sample
from potluck.data.streams.replaying import Order
from potluck.data.streams.settings import Stream
from potluck.data.streams.sources import Clock, Inlet, Stock

__all__ = ["Live", "ordered", "stream_in"]


class Live(NamedTuple):
    """`pour(samples, feed)` is the task that lets it run; the inlet counts what was refused."""

    feed: LiveFeed
    samples: AsyncIterator[Sample]
    inlet: Inlet


def ordered(shard: Indices, device: str, seed: int) -> Order:
    """In which order a device's share of the data streams in."""
    return Order(shard, partial(seeds.generator, seed, device, "stream"))


def stream_in(stream: Stream, data: Dataset, shard: Indices, device: str, place: int, seed: int, clock: Clock) -> Live:
    """The stream of the device that has this place in the fleet."""
    stock = Stock(data.train, ordered(shard, device, seed), stream.rate.arrivals(place, seed))
    inlet = Inlet(device, Expected.of(data), clock, float(stream.late), stock)
    store = Store(data.train.scaling, data.train.augmentation)
    limit = stream.samples_in_memory(data.sample_bytes)
    return Live(LiveFeed(stream.buffer, store, clock.now, limit, inlet), stream.source.samples(inlet), inlet)
