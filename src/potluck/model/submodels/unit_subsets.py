"""Which units of a set are kept: the first ones, a window that moves on with the rounds, or any."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from potluck.model.submodels.slimmable_model import SlimmableModel
from potluck.model.submodels.submodel_selection import Indices, Subsets

__all__ = ["Chooser", "choose_subsets", "leading_units", "random_units", "rolling_units", "uniform_counts"]

Chooser = Callable[[int, int], Indices]  # of (size, kept)


def leading_units(size: int, kept: int) -> Indices:
    """The first ones (HeteroFL, FjORD)."""
    return np.arange(kept)


def rolling_units(round: int) -> Chooser:
    """A window that starts one further every round and wraps around (FedRolex)."""
    return lambda size, kept: np.sort((np.arange(kept) + round) % size)


def random_units(rng: np.random.Generator) -> Chooser:
    """Any, all alike (Federated Dropout, filter dropout)."""
    return lambda size, kept: np.sort(rng.permutation(size)[:kept])


def choose_subsets(width: SlimmableModel, counts: Sequence[int], choose: Chooser) -> Subsets:
    """So many units of every set, chosen in the same way; None where all are kept, and nothing is drawn."""
    pairs = zip(width.full_counts, counts, strict=True)
    return [None if kept == size else choose(size, kept) for size, kept in pairs]


def uniform_counts(width: SlimmableModel, kept: float, grid: int = 1) -> tuple[int, ...]:
    """The counts that keep this share of every set."""
    return width.kept_counts([1 - kept] * len(width.sets), grid)
