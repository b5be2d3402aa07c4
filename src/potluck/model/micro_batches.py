"""Which samples make up a batch of a pipeline, and its parts where it is cut into several."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from potluck import seeds

__all__ = ["MicroBatches"]

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MicroBatches:
    """An epoch is a seeded order of all samples; parts are numbered on through the batches."""

    samples: int
    batch: int
    per_batch: int = 1
    seed: int = 0

    @property
    def size(self) -> int:
        """Samples in a batch; what is left over at the end of an epoch is in none."""
        return min(self.batch, self.samples)

    def sample_indices(self, part: int) -> Indices:
        batch, place = divmod(part, self.per_batch)
        epoch, turn = divmod(batch, self.samples // self.size)
        begin, end = self._micro_batch_bounds(place)
        return _epoch_order(self.seed, epoch, self.samples)[turn * self.size + begin : turn * self.size + end]

    def count(self, part: int) -> int:
        """How many samples a part has."""
        begin, end = self._micro_batch_bounds(part % self.per_batch)
        return end - begin

    def batch_fraction(self, part: int) -> float:
        """What a part weighs in its batch."""
        return self.count(part) / self.size

    def _micro_batch_bounds(self, place: int) -> tuple[int, int]:
        return place * self.size // self.per_batch, (place + 1) * self.size // self.per_batch


@lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, samples: int) -> Indices:
    return seeds.child_generator(seed, "epoch", epoch).permutation(samples)
