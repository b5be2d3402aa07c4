"""The stream of a live device: its source runs into its buffer for as long as it takes part."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

from potluck import seeds
from potluck.data import Dataset
from potluck.data.streams import Expected, Inlet, LiveFeed, Order, Stock, Store, pour
from potluck.job import Job
from potluck.loops.node import Node
from potluck.run.setup import Setup

__all__ = ["live_stream"]


@contextlib.asynccontextmanager
async def live_stream(setup: Setup, node: Node) -> AsyncIterator[None]:
    """Within this, the device's data comes from the job's source; without a stream it has it all."""
    stream, data = setup.job.stream, setup.data
    if stream is None or data is None:
        yield
        return
    store = Store(data.train.scaling, data.train.augmentation)
    feed = LiveFeed(stream.buffer, store, node.now, stream.samples_in_memory(data.sample_bytes))
    pouring = asyncio.create_task(pour(stream.source.samples(_inlet(setup, data, node)), feed))
    replayed, setup.feeds = setup.feeds, lambda device: feed
    try:
        yield
    finally:
        setup.feeds = replayed
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)


def _inlet(setup: Setup, data: Dataset, node: Node) -> Inlet:
    job = setup.job
    assert job.stream is not None
    expected = Expected.of(data)
    order = Order(setup.shards[node.name], partial(seeds.generator, job.seed, node.name, "stream"))
    stock = Stock(data.train, order, job.stream.rate.arrivals(_place(job, node.name), job.seed))
    return Inlet(node.name, expected, node, float(job.stream.late), stock)


def _place(job: Job, device: str) -> int:
    return [member.name for member in job.fleet.members].index(device)
