"""Even shares: how many each group gets, and who goes where when each group has a fixed number of places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

__all__ = ["assign_evenly", "even_sizes"]

Numbers = npt.NDArray[np.float64]
Owners = npt.NDArray[np.int64]


def even_sizes(total: int, groups: int) -> tuple[int, ...]:
    """As even as whole numbers can be; the first groups take what is left over."""
    each, left = divmod(total, groups)
    return tuple(each + (group < left) for group in range(groups))


def assign_evenly(gains: Numbers, sizes: Sequence[int]) -> Owners:
    """A group for each row of `gains` (what it is worth in each group), so that group g gets `sizes[g]` of them.

    Whoever would lose most by not getting the first choice chooses first; then pairs are swapped while that helps.
    """
    rows, groups = gains.shape
    assert len(sizes) == groups, "a gain for every group"
    assert sum(sizes) == rows, "a place for everyone"
    owners = _assign_greedily(gains, list(sizes))
    while _swap_pairs(gains, owners):
        pass
    return owners


def _assign_greedily(gains: Numbers, room: list[int]) -> Owners:
    ranked = np.sort(gains, axis=1)
    regret = ranked[:, -1] - ranked[:, -2] if gains.shape[1] > 1 else ranked[:, -1]
    owners = np.empty(len(gains), np.int64)
    for row in np.argsort(-regret, kind="stable"):
        best = max((group for group in range(len(room)) if room[group]), key=lambda group: gains[row, group])
        owners[row] = best
        room[best] -= 1
    return owners


def _swap_pairs(gains: Numbers, owners: Owners) -> bool:
    """Swap the best pair between any two groups; False if no swap gains anything."""
    swapped = False
    tolerance = 1e-9 * float(np.abs(gains).max(initial=0.0))  # each swap gains this at least, so there is an end
    for one, two in combinations(range(gains.shape[1]), 2):
        ours, theirs = np.flatnonzero(owners == one), np.flatnonzero(owners == two)
        if not len(ours) or not len(theirs):
            continue
        leave, come = gains[ours, two] - gains[ours, one], gains[theirs, one] - gains[theirs, two]
        if leave.max() + come.max() > tolerance:
            owners[ours[leave.argmax()]], owners[theirs[come.argmax()]] = two, one
            swapped = True
    return swapped
