"""How training reads data: samples by index, and the indices of each batch and micro-batch of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from potluck import seeds

__all__ = ["IndexedDataset", "Indices", "MicroBatches", "PipelineData"]


Indices = npt.NDArray[np.int64]


class IndexedDataset(Protocol):
    """Samples that are read by index."""

    @property
    def needs_rng(self) -> bool:
        """Whether reading a batch involves randomness (augmentation) and so needs a generator."""

    def __len__(self) -> int: ...

    def batch(self, indices: Indices, rng: np.random.Generator | None = None) -> tuple[Any, Any]: ...


@dataclass(frozen=True)
class MicroBatches:
    """An epoch is a seeded order of all samples; micro-batches are numbered continuously across batches."""

    samples: int
    batch: int
    per_batch: int = 1
    seed: int = 0

    @property
    def size(self) -> int:
        """Samples in a batch; the remainder at the end of an epoch is dropped."""
        return min(self.batch, self.samples)

    def sample_indices(self, micro_batch: int) -> Indices:
        batch, index = divmod(micro_batch, self.per_batch)
        epoch, batch_of_epoch = divmod(batch, self.samples // self.size)
        begin, end, start = *self._micro_batch_bounds(index), batch_of_epoch * self.size
        return _epoch_order(self.seed, epoch, self.samples)[start + begin : start + end]

    def count(self, micro_batch: int) -> int:
        """How many samples a micro-batch has."""
        begin, end = self._micro_batch_bounds(micro_batch % self.per_batch)
        return end - begin

    def batch_fraction(self, micro_batch: int) -> float:
        """A micro-batch's fraction of its batch."""
        return self.count(micro_batch) / self.size

    def _micro_batch_bounds(self, index: int) -> tuple[int, int]:
        return index * self.size // self.per_batch, (index + 1) * self.size // self.per_batch


class PipelineData(NamedTuple):
    """What a pipeline trains and is evaluated on."""

    train: IndexedDataset
    micro_batches: MicroBatches
    test: IndexedDataset | None = None
    classes: int = 0  # 0 if unknown


@lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, samples: int) -> Indices:
    return seeds.child_generator(seed, "epoch", epoch).permutation(samples)
