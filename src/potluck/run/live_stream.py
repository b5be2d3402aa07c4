"""The stream of a live device: its source runs into its buffer for as long as it takes part."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from potluck.data.streams import run_source
from potluck.data.streams.open_stream import open_live_stream
from potluck.job import Job
from potluck.journal import ACCOUNT, Instant
from potluck.loops.node import Node
from potluck.run.rounds_setup import RoundsSetup

__all__ = ["run_live_stream"]


@contextlib.asynccontextmanager
async def run_live_stream(setup: RoundsSetup, node: Node) -> AsyncIterator[None]:
    """Within this, the device's data comes from the job's source; without a stream it has it all.

    A source that fails for good ends the device's part with its error, so that the coordinator hears of it.
    """
    job, stream, data, name = setup.job, setup.job.stream, setup.data, node.name
    if stream is None or data is None:
        yield
        return
    live = open_live_stream(stream, data, setup.shards[name], name, _device_index(job, name), job.seed, node)
    replayed, setup.feeds = setup.feeds, lambda device: live.feed
    try:
        async with _run_alongside(run_source(live.samples, live.feed)):
            try:
                yield
            finally:
                node.record(Instant(name, ACCOUNT, node.now(), dict(live.feed.journal_fields())))
    finally:
        setup.feeds = replayed


@contextlib.asynccontextmanager
async def _run_alongside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
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


def _device_index(job: Job, device: str) -> int:
    return [member.name for member in job.fleet.members].index(device)
