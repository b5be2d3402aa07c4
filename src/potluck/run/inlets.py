"""The stream of a live device: its source runs into its buffer for as long as it takes part."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from potluck.data.streams import pour
from potluck.data.streams.opening import stream_in
from potluck.job import Job
from potluck.journal import ACCOUNT, Instant
from potluck.loops.node import Node
from potluck.run.setup import Setup

__all__ = ["live_stream"]


@contextlib.asynccontextmanager
async def live_stream(setup: Setup, node: Node) -> AsyncIterator[None]:
    """Within this, the device's data comes from the job's source; without a stream it has it all.

    A source that fails for good ends the device's part with its error, so that the coordinator hears of it.
    """
    job, stream, data, name = setup.job, setup.job.stream, setup.data, node.name
    if stream is None or data is None:
        yield
        return
    live = stream_in(stream, data, setup.shards[name], name, _place(job, name), job.seed, node)
    replayed, setup.feeds = setup.feeds, lambda device: live.feed
    try:
        async with _alongside(pour(live.samples, live.feed)):
            try:
                yield
            finally:
                node.record(Instant(name, ACCOUNT, node.now(), dict(live.feed.told())))
    finally:
        setup.feeds = replayed


@contextlib.asynccontextmanager
async def _alongside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Within this the work goes on; if it fails, what is done meanwhile is broken off and the error raised."""
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            try:
                yield
            finally:
                task.cancel()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _place(job: Job, device: str) -> int:
    return [member.name for member in job.fleet.members].index(device)
