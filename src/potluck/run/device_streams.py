"""The streams of a job's devices: replayed from their shards, or read from a live source into their buffers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Any, NamedTuple

import torch

from potluck import seeds
from potluck.data import Dataset, Samples
from potluck.data.samples import Indices
from potluck.data.streams import run_source
from potluck.data.streams.live_feed import LiveFeed, SampleStore
from potluck.data.streams.replay_feed import ReplayFeed, ReplayOrder
from potluck.data.streams.settings import StreamSettings
from potluck.data.streams.sources import ReplayData, StreamClock, StreamIngest
from potluck.data.streams.stream_feed import StreamFeed
from potluck.data.streams.stream_records import SampleSpec, StreamSample
from potluck.job import Job
from potluck.journal import ACCOUNT, Instant
from potluck.loops.node import Node
from potluck.loops.turn_sizing import FeedFactory, Shards

__all__ = ["LiveStream", "open_live_stream", "replay_feed_factory", "run_live_feed", "stream_order"]


def replay_feed_factory(job: Job, shards: Shards, train: Samples | None) -> FeedFactory | None:
    """Builds a device's feed; None for a job whose data is there from the start.

    Where only time is modelled there are no samples to give away, so data injection is left out.
    """
    stream = job.stream
    if stream is None:
        return None
    positions = {device.name: index for index, device in enumerate(job.fleet.members)}
    labels = train.labels if train is not None and train.y.dtype == torch.int64 else None

    def make_feed(device: str) -> StreamFeed:
        order = ReplayOrder(shards[device], partial(seeds.child_generator, job.seed, device, "stream"))
        arrivals = stream.rate.arrivals_of(positions[device], job.seed)
        return ReplayFeed(arrivals, order, stream.buffer, train, labels)  # type: ignore[arg-type]

    return make_feed


@contextlib.asynccontextmanager
async def run_live_feed(job: Job, data: Dataset, shards: Shards, node: Node) -> AsyncIterator[StreamFeed]:
    """Within this context the job's source fills the device's feed.

    A source that fails for good ends the device's work with its error, so that the coordinator hears of it.
    """
    assert job.stream is not None
    name, index = node.name, [member.name for member in job.fleet.members].index(node.name)
    order, arrivals = stream_order(shards[name], name, job.seed), job.stream.rate.arrivals_of(index, job.seed)
    live = open_live_stream(job.stream, data, name, ReplayData(data.train, order, arrivals), node)
    async with _run_alongside(run_source(live.samples, live.feed)):
        try:
            yield live.feed
        finally:
            node.record(Instant(name, ACCOUNT, node.now(), dict(live.feed.journal_fields())))


@contextlib.asynccontextmanager
async def _run_alongside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Within this context the work goes on; if it fails, the body is cancelled and the error raised."""
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            try:
                yield
            finally:
                task.cancel()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


class LiveStream(NamedTuple):
    """`run_source(samples, feed)` runs it; `ingest` counts refused records."""

    feed: LiveFeed
    samples: AsyncIterator[StreamSample]
    ingest: StreamIngest


def stream_order(shard: Indices, device: str, seed: int) -> ReplayOrder:
    """The order in which a device's shard streams in."""
    return ReplayOrder(shard, partial(seeds.child_generator, seed, device, "stream"))


def open_live_stream(
    stream: StreamSettings, data: Dataset, device: str, replay: ReplayData, clock: StreamClock
) -> LiveStream:
    """Open a device's stream; `replay` is what it brings if its source is a replay."""
    ingest = StreamIngest(device, SampleSpec.from_dataset(data), clock, float(stream.late), replay)
    store = SampleStore(data.train.scaling, data.train.augmentation)
    limit = stream.samples_in_memory(data.sample_bytes)
    return LiveStream(LiveFeed(stream.buffer, store, clock.now, limit, ingest), stream.source.samples(ingest), ingest)
