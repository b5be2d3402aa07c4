"""Assigns rows to groups of fixed, even sizes so that the total gain is high."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

__all__ = ["assign_evenly", "even_sizes"]

FloatArray = npt.NDArray[np.float64]
GroupIndices = npt.NDArray[np.int64]


def even_sizes(total: int, groups: int) -> tuple[int, ...]:
    """Sizes that sum to `total` and differ by at most one; the first groups are the larger ones."""
    each, left = divmod(total, groups)
    return tuple(each + (group < left) for group in range(groups))


def assign_evenly(gains: FloatArray, sizes: Sequence[int]) -> GroupIndices:
    """A group for each row of `gains` (its gain in each group), so that group g gets `sizes[g]` rows.

    Greedy by regret (the row that would lose most without its first choice chooses first), then pairwise swaps while
    they help.
    """
    rows, groups = gains.shape
    assert len(sizes) == groups, "one size per group"
    assert sum(sizes) == rows, "the sizes must sum to the number of rows"
    owners = _assign_greedily(gains, list(sizes))
    while _swap_pairs(gains, owners):
        pass
    return owners


def _assign_greedily(gains: FloatArray, free: list[int]) -> GroupIndices:
    ranked = np.sort(gains, axis=1)
    regret = ranked[:, -1] - ranked[:, -2] if gains.shape[1] > 1 else ranked[:, -1]
    owners = np.empty(len(gains), np.int64)
    for row in np.argsort(-regret, kind="stable"):
        best = max((group for group in range(len(free)) if free[group]), key=lambda group: gains[row, group])
        owners[row] = best
        free[best] -= 1
    return owners


def _swap_pairs(gains: FloatArray, owners: GroupIndices) -> bool:
    """Swap the best pair between every two groups; False if no swap gains anything."""
    swapped = False
    tolerance = 1e-9 * float(
        np.abs(gains).max(initial=0.0)
    )  # every swap gains at least this much, so the search terminates
    for one, two in combinations(range(gains.shape[1]), 2):
        first, second = np.flatnonzero(owners == one), np.flatnonzero(owners == two)
        if not len(first) or not len(second):
            continue
        first_gain, second_gain = gains[first, two] - gains[first, one], gains[second, one] - gains[second, two]
        if first_gain.max() + second_gain.max() > tolerance:
            owners[first[first_gain.argmax()]], owners[second[second_gain.argmax()]] = two, one
            swapped = True
    return swapped
