"""Batches that follow a stream: as many samples as come in, as a device can work off, cut as its memory likes.

What a turn takes from its feed is `wanted(batching, flow)`; it is cut into mini-batches of `cut(batching, samples)`.
With several of them `local = "gradient"` accumulates one mean gradient over all samples and `local = "sgd"` takes a
step with each.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from potluck.loops.parts.batching import Batching, Indices
from potluck.settings import doc
from potluck.units import Seconds

__all__ = [
    "LineRateBatching",
    "RateBatching",
    "StreamBatching",
    "StreamThroughput",
    "max_turn_samples",
    "split_batch_sizes",
    "split_indices",
    "turn_samples",
]

Size = Annotated[int, msgspec.Meta(ge=1)]
_ENDLESS = 2**40  # samples: a stream never runs out


class StreamThroughput(NamedTuple):
    """What a device knows when it has to say how many samples it wants."""

    rate: float  # samples per second that stream in
    speed: float = math.inf  # samples per second that it can train on
    turn_s: float = 0.0  # how long its turns take without waiting for data, by its own estimate; 0 at first


class RateBatching(Batching, frozen=True, kw_only=True):
    """Between `low` and `high` samples a turn, in mini-batches of at most `cap`."""

    low: Annotated[Size, doc("Fewest samples of a turn.")] = 8
    high: Annotated[Size, doc("Most samples of a turn.")] = 1024
    cap: Annotated[
        Size | None,
        doc("Most samples of a mini-batch; a larger turn is divided evenly. By default the turn is one mini-batch."),
    ] = None

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"`low` must not be above `high`, got {self.low} and {self.high}")

    def unbounded_samples(self, flow: StreamThroughput) -> float:
        """How many samples, before bounds."""
        raise NotImplementedError

    def wanted_samples(self, flow: StreamThroughput) -> int:
        return min(max(math.floor(self.unbounded_samples(flow) + 1e-9), self.low), self.high)

    def batch_size_for(self, samples: int) -> int:
        """Without a stream: what the bounds allow."""
        return min(samples, self.cap or self.high)


class StreamBatching(RateBatching, frozen=True, kw_only=True, tag="stream"):
    """As many samples as stream in within `window` (ScaDLES)."""

    window: Annotated[Seconds, doc("Time whose samples make up a turn.")] = Seconds(1)

    def unbounded_samples(self, flow: StreamThroughput) -> float:
        return self.window * flow.rate


class LineRateBatching(RateBatching, frozen=True, kw_only=True, tag="line-rate"):
    """Like `stream`, but no more samples than the device can train on in that time."""

    window: Annotated[Seconds, doc("Time whose samples make up a turn.")] = Seconds(1)
    turns: Annotated[
        bool, doc("Extend the window to the length of the device's own turns; at most half of that is spent computing.")
    ] = False

    def unbounded_samples(self, flow: StreamThroughput) -> float:
        least = self.window * min(flow.rate, flow.speed)
        return max(least, flow.turn_s * min(flow.rate, flow.speed / 2)) if self.turns else least


def turn_samples(batching: Batching, flow: StreamThroughput) -> int:
    """How many samples a turn takes from its feed; batching that knows no streams wants its usual mini-batch."""
    return batching.wanted_samples(flow) if isinstance(batching, RateBatching) else batching.batch_size_for(_ENDLESS)


def max_turn_samples(batching: Batching) -> int:
    """How many samples a turn takes at most, whatever streams in."""
    return batching.high if isinstance(batching, RateBatching) else batching.batch_size_for(_ENDLESS)


def split_batch_sizes(batching: Batching, samples: int) -> tuple[int, ...]:
    """The mini-batches of a turn: as few as `cap` allows, as even as can be."""
    cap = batching.cap if isinstance(batching, RateBatching) and batching.cap is not None else samples
    count = max(1, math.ceil(samples / max(cap, 1)))
    each, more = divmod(samples, count)
    return tuple(each + (place < more) for place in range(count))


def split_indices(ids: Indices, sizes: tuple[int, ...]) -> list[Indices]:
    """The ids of a turn in its mini-batches."""
    bounds = [0, *np.cumsum(sizes).tolist()]
    return [ids[start:stop] for start, stop in pairwise(bounds)]
