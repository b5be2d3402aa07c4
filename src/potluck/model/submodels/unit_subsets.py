"""Chooses which units of a set are kept: the leading ones, a window that moves with the rounds, or random ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from potluck.model.submodels.slimmable_model import SlimmableModel
from potluck.model.submodels.submodel_selection import Indices, Subsets

__all__ = ["UnitChooser", "choose_subsets", "leading_units", "random_units", "rolling_units", "uniform_counts"]

UnitChooser = Callable[[int, int], Indices]  # of (size, kept)


def leading_units(size: int, kept: int) -> Indices:
    """The leading units (HeteroFL, FjORD)."""
    return np.arange(kept)


def rolling_units(round: int) -> UnitChooser:
    """A window that advances by one unit every round and wraps around (FedRolex)."""
    return lambda size, kept: np.sort((np.arange(kept) + round) % size)


def random_units(rng: np.random.Generator) -> UnitChooser:
    """Units drawn uniformly at random (Federated Dropout, filter dropout)."""
    return lambda size, kept: np.sort(rng.permutation(size)[:kept])


def choose_subsets(slimmable: SlimmableModel, counts: Sequence[int], choose: UnitChooser) -> Subsets:
    """Choose this many units of every set; None for a set of which all are kept, without using the chooser."""
    pairs = zip(slimmable.full_counts, counts, strict=True)
    return [None if kept == size else choose(size, kept) for size, kept in pairs]


def uniform_counts(slimmable: SlimmableModel, kept: float, grid: int = 1) -> tuple[int, ...]:
    """The counts that keep this fraction of every set."""
    return slimmable.kept_counts([1 - kept] * len(slimmable.sets), grid)
