"""Batching: how many samples a device uses in a turn, and which."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from potluck.settings import Part, doc

__all__ = ["Batching", "FixedBatching"]

Indices = npt.NDArray[np.int64]
Rng = Callable[..., np.random.Generator]


class Batching(Part, frozen=True, kw_only=True):
    """Chooses a device's mini-batches for one turn."""

    stream_keys: ClassVar[tuple[str, ...]] = ()  # keys that have no effect unless samples stream in

    def batch_size_for(self, samples: int) -> int:
        """The mini-batch size of a device that holds this many samples."""
        raise NotImplementedError

    def batches_per_epoch(self, samples: int) -> int:
        """How many mini-batches make up one pass over the data; arithmetic, since a device may claim to hold 2⁵³."""
        size = self.batch_size_for(samples)
        cuts = max(0, -(-samples // size) - 1) if size else 0
        return cuts + 1 - (cuts > 0 and size > 1 and samples % size == 1)

    def turn_batch_sizes(self, samples: int, passes: int | None) -> tuple[int, ...]:
        """The sizes of a turn's mini-batches."""
        return _batch_sizes(samples, self.batch_size_for(samples), passes)

    def choose_batches(self, shard: Indices, count: int, passes: int | None, rng: Rng) -> list[Indices]:
        """The mini-batches of the turn after `count` earlier ones.

        With `passes`, that many mini-batches in a new order, over the data as often as it takes. Without, the next
        single one of an endless sequence that goes through the data in a new order each time.
        """
        size = self.batch_size_for(len(shard))
        if passes is None:
            per_epoch = max(1, len(shard) // size)
            epoch, index = divmod(count, per_epoch)
            order = rng("order", epoch).permutation(len(shard))
            return [shard[order[index * size : (index + 1) * size]]]
        generator = rng("order", count)
        batches: list[Indices] = []
        while len(batches) < passes:
            order = generator.permutation(len(shard))
            bounds = [0, *_epoch_cuts(len(shard), size), len(shard)][: passes - len(batches) + 1]
            batches += [shard[order[start:end]] for start, end in pairwise(bounds)]
        return batches


class FixedBatching(Batching, frozen=True, kw_only=True, tag="fixed"):
    """The same number of samples in every mini-batch, or all that the device has if that is less."""

    size: Annotated[int, msgspec.Meta(ge=1), doc("Samples per mini-batch.")] = 32

    def batch_size_for(self, samples: int) -> int:
        return min(self.size, samples)


@lru_cache(maxsize=4096)
def _batch_sizes(samples: int, size: int, passes: int | None) -> tuple[int, ...]:
    if passes is None:
        return (size,)
    epoch = tuple(end - start for start, end in pairwise([0, *_epoch_cuts(samples, size), samples]))
    return (epoch * -(-passes // len(epoch)))[:passes]


@lru_cache(maxsize=4096)
def _epoch_cuts(samples: int, size: int) -> tuple[int, ...]:
    """Where an epoch is cut. A single leftover sample joins the previous batch: batch norm cannot train on one."""
    cuts = list(range(size, samples, size))
    if cuts and samples - cuts[-1] == 1 and size > 1:
        cuts.pop()
    return tuple(cuts)
