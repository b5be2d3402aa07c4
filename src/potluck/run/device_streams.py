"""The streams of a job's devices: replayed from their shards, or read from a live source into their buffers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from potluck import seeds
from potluck.data import Dataset, SampleSet
from potluck.data.iterable_stream import IterableOrder
from potluck.data.samples import PLAIN, Indices
from potluck.data.streams import run_source
from potluck.data.streams.live_feed import LiveFeed, SampleStore
from potluck.data.streams.replay_feed import ReplayFeed, ReplayOrder
from potluck.data.streams.settings import StreamSettings
from potluck.data.streams.sources import ReplayData, ReplaySource, StreamClock, StreamIngest
from potluck.data.streams.stream_feed import StreamFeed
from potluck.data.streams.stream_records import SampleSpec, StreamSample
from potluck.errors import SettingError
from potluck.job import Job
from potluck.journal import ACCOUNT, Instant
from potluck.loops.node import Node
from potluck.loops.turn_sizing import FeedFactory, Shards

__all__ = ["LiveStream", "held_classes", "open_live_stream", "replay_feed_factory", "run_live_feed", "stream_order"]


def replay_feed_factory(job: Job, shards: Shards, train: SampleSet | None) -> FeedFactory | None:
    """Builds a device's feed; None for a job whose data is there from the start.

    Where only time is modelled there are no samples to copy, so data injection is left out.
    """
    stream = job.stream
    if stream is None:
        return None
    positions = {device.name: index for index, device in enumerate(job.fleet.members)}
    labels = train.labels if train is not None and train.has_labels else None

    def make_feed(device: str) -> StreamFeed:
        order = _arrival_order(job, device, shards, train)
        arrivals = stream.rate.arrivals_of(positions[device], job.seed)
        return ReplayFeed(arrivals, order, stream.buffer, train, labels)  # type: ignore[arg-type]

    return make_feed


def held_classes(job: Job, data: Dataset, shards: Shards) -> dict[str, frozenset[int]]:
    """The classes that each device's stream brings, where data injection goes by class."""
    injection = None if job.stream is None else job.stream.injection
    if job.stream is None or injection is None or not injection.by_class:
        return {}
    if not isinstance(job.stream.source, ReplaySource) or not data.classes or not data.train.has_labels:
        raise SettingError(
            "stream.injection",
            'goes by the classes of each device, which only a replay of labelled data knows; use "broadcast"',
        )
    labels = data.train.labels
    return {name: frozenset(np.unique(labels[shard]).tolist()) for name, shard in shards.items()}


@contextlib.asynccontextmanager
async def run_live_feed(job: Job, data: Dataset, shards: Shards, node: Node) -> AsyncIterator[StreamFeed]:
    """Within this context the job's source fills the device's feed.

    A source that fails for good ends the device's work with its error, so that the coordinator hears of it.
    """
    assert job.stream is not None
    name, index = node.name, [member.name for member in job.fleet.members].index(node.name)
    order, arrivals = _arrival_order(job, name, shards, data.train), job.stream.rate.arrivals_of(index, job.seed)
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


def _arrival_order(job: Job, device: str, shards: Shards, train: SampleSet | None) -> ReplayOrder | IterableOrder:
    """The order in which a device's samples stream in: of its shard, or of the iterable data set that all share."""
    if train is not None and train.is_stream:
        names = [member.name for member in job.fleet.members]
        return IterableOrder(names.index(device), len(names))
    return stream_order(shards[device], device, job.seed)


def open_live_stream(
    stream: StreamSettings, data: Dataset, device: str, replay: ReplayData, clock: StreamClock
) -> LiveStream:
    """Open a device's stream; `replay` is what it brings if its source is a replay."""
    ingest = StreamIngest(device, SampleSpec.from_dataset(data), clock, float(stream.late), replay)
    train = data.train
    scaling, augmentation = getattr(train, "scaling", PLAIN), getattr(train, "augmentation", None)
    store = SampleStore(scaling, augmentation, train.dtype, train)
    limit = stream.samples_in_memory(data.sample_bytes)
    return LiveStream(LiveFeed(stream.buffer, store, clock.now, limit, ingest), stream.source.samples(ingest), ingest)
