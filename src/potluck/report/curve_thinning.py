"""Fewer points that draw the same picture: in each bucket the first, the last, the least and the greatest stay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["thinned_indices"]


def thinned_indices(values: Sequence[float] | npt.NDArray[np.float64], most: int = 1000) -> npt.NDArray[np.int64]:
    """The places to keep, in order; all of them if they are no more than `most`."""
    found = np.asarray(values, dtype=np.float64)
    if len(found) <= most:
        return np.arange(len(found))
    edges = np.linspace(0, len(found), max(most // 4, 1) + 1).astype(np.int64)
    kept = {0, len(found) - 1}
    for first, after in pairwise(edges):
        bucket = found[first:after]
        kept.update((first, after - 1, first + int(bucket.argmin()), first + int(bucket.argmax())))
    return np.array(sorted(kept), dtype=np.int64)
