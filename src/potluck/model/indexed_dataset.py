"""What training asks of data."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

__all__ = ["IndexedDataset", "Indices"]

Indices = npt.NDArray[np.int64]


class IndexedDataset(Protocol):
    """Samples that can be asked for by index."""

    @property
    def needs_rng(self) -> bool:
        """Whether a batch is drawn at random, and so needs a generator; False where it is plain."""

    def __len__(self) -> int: ...

    def batch(self, indices: Indices, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]: ...
