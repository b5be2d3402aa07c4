"""Which units of a set are kept: the first ones, a window that moves on with the rounds, or any."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from potluck.model.submodels.selection import Indices, Subsets
from potluck.model.submodels.width import Width

__all__ = ["Chooser", "leading", "random", "rolling", "subsets", "uniform_counts"]

Chooser = Callable[[int, int], Indices]  # of (size, kept)


def leading(size: int, kept: int) -> Indices:
    """The first ones (HeteroFL, FjORD)."""
    return np.arange(kept)


def rolling(round: int) -> Chooser:
    """A window that starts one further every round and wraps around (FedRolex)."""
    return lambda size, kept: np.sort((np.arange(kept) + round) % size)


def random(rng: np.random.Generator) -> Chooser:
    """Any, all alike (Federated Dropout, filter dropout)."""
    return lambda size, kept: np.sort(rng.permutation(size)[:kept])


def subsets(width: Width, counts: Sequence[int], choose: Chooser) -> Subsets:
    """So many units of every set, chosen in the same way; None where all are kept, and nothing is drawn."""
    pairs = zip(width.full, counts, strict=True)
    return [None if kept == size else choose(size, kept) for size, kept in pairs]


def uniform_counts(width: Width, kept: float, grid: int = 1) -> tuple[int, ...]:
    """The counts that keep this share of every set."""
    return width.counts([1 - kept] * len(width.sets), grid)
