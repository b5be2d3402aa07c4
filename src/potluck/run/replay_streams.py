"""The streams of a job: each device's share of the data, replayed at its rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from potluck import seeds
from potluck.data import Samples
from potluck.data.streams.replay_feed import ReplayFeed, ReplayOrder
from potluck.data.streams.stream_feed import StreamFeed
from potluck.job import Job

__all__ = ["replay_feed_factory"]

Shards = Mapping[str, npt.NDArray[np.int64]]


def replay_feed_factory(job: Job, shards: Shards, train: Samples | None) -> Callable[[str], StreamFeed] | None:
    """What makes a device's feed; None for a job whose data is there from the start.

    Where only time is modelled there are no samples to give away, so data injection is left out.
    """
    stream = job.stream
    if stream is None:
        return None
    places = {device.name: place for place, device in enumerate(job.fleet.members)}
    labels = train.labels if train is not None and train.y.dtype == torch.int64 else None

    def make_feed(device: str) -> StreamFeed:
        order = ReplayOrder(shards[device], partial(seeds.child_generator, job.seed, device, "stream"))
        arrivals = stream.rate.arrivals_of(places[device], job.seed)
        return ReplayFeed(arrivals, order, stream.buffer, train, labels)  # type: ignore[arg-type]

    return make_feed
