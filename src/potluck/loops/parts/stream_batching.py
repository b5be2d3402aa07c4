"""Batching that follows a stream: as many samples as arrive or as a device can train on, split to fit its memory.

A turn takes `turn_samples` from its feed and splits them into mini-batches of `split_batch_sizes`.
With several of them `local = "gradient"` accumulates one mean gradient over all samples and `local = "sgd"` takes a
step with each.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple

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
_UNLIMITED = 2**40  # samples: a stream never runs out


class StreamThroughput(NamedTuple):
    """The rates from which a device decides how many samples it wants."""

    rate: float  # samples per second that arrive
    speed: float = math.inf  # samples per second that it can train on
    turn_s: float = 0.0  # estimated duration of a turn without waiting for data; 0 at first


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

    def unbounded_samples(self, throughput: StreamThroughput) -> float:
        """The number of samples before `low` and `high` apply."""
        raise NotImplementedError

    def wanted_samples(self, throughput: StreamThroughput) -> int:
        return min(max(math.floor(self.unbounded_samples(throughput) + 1e-9), self.low), self.high)

    def batch_size_for(self, samples: int) -> int:
        """The mini-batch size without a stream."""
        return min(samples, self.cap or self.high)


class StreamBatching(RateBatching, frozen=True, kw_only=True, tag="stream"):
    """As many samples as arrive within `window` (ScaDLES)."""

    stream_keys: ClassVar[tuple[str, ...]] = ("low", "window")

    window: Annotated[Seconds, doc("Time whose samples make up a turn.")] = Seconds(1)

    def unbounded_samples(self, throughput: StreamThroughput) -> float:
        return self.window * throughput.rate


class LineRateBatching(RateBatching, frozen=True, kw_only=True, tag="line-rate"):
    """Like `stream`, but no more samples than the device can train on in that time."""

    stream_keys: ClassVar[tuple[str, ...]] = ("low", "window", "turns")

    window: Annotated[Seconds, doc("Time whose samples make up a turn.")] = Seconds(1)
    turns: Annotated[
        bool, doc("Extend the window to the length of the device's own turns; at most half of that is spent computing.")
    ] = False

    def unbounded_samples(self, throughput: StreamThroughput) -> float:
        least = self.window * min(throughput.rate, throughput.speed)
        return max(least, throughput.turn_s * min(throughput.rate, throughput.speed / 2)) if self.turns else least


def turn_samples(batching: Batching, throughput: StreamThroughput) -> int:
    """How many samples a turn takes from its feed; one usual mini-batch where batching ignores streams."""
    return (
        batching.wanted_samples(throughput)
        if isinstance(batching, RateBatching)
        else batching.batch_size_for(_UNLIMITED)
    )


def max_turn_samples(batching: Batching) -> int:
    """How many samples a turn takes at most, however many arrive."""
    return batching.high if isinstance(batching, RateBatching) else batching.batch_size_for(_UNLIMITED)


def split_batch_sizes(batching: Batching, samples: int) -> tuple[int, ...]:
    """The mini-batch sizes of a turn: as few as `cap` allows, and as equal as possible."""
    cap = batching.cap if isinstance(batching, RateBatching) and batching.cap is not None else samples
    count = max(1, math.ceil(samples / max(cap, 1)))
    each, more = divmod(samples, count)
    return tuple(each + (index < more) for index in range(count))


def split_indices(ids: Indices, sizes: tuple[int, ...]) -> list[Indices]:
    """A turn's sample ids, split into its mini-batches."""
    bounds = [0, *np.cumsum(sizes).tolist()]
    return [ids[start:stop] for start, stop in pairwise(bounds)]
