"""The interface through which training reads data."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

__all__ = ["IndexedDataset", "Indices"]

Indices = npt.NDArray[np.int64]


class IndexedDataset(Protocol):
    """Samples that are read by index."""

    @property
    def needs_rng(self) -> bool:
        """Whether reading a batch involves randomness (augmentation) and so needs a generator."""

    def __len__(self) -> int: ...

    def batch(self, indices: Indices, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]: ...
