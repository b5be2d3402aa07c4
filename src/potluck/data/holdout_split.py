"""Holds out test samples where the publisher did not; every device holds out the same ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from potluck.data.samples import Indices

__all__ = ["split_holdout"]


def split_holdout(labels: npt.NDArray[np.integer], count: int, seed: int = 0) -> tuple[Indices, Indices]:
    """Return sorted training and test indices, stratified by class; each class keeps at least one training sample."""
    # NumPy guarantees that the legacy generator's stream never changes, so all devices agree on the split.
    random = np.random.RandomState(seed)
    classes, sizes = np.unique(labels, return_counts=True)
    quotas = _proportional_quotas(sizes, count)
    test = [random.permutation(np.flatnonzero(labels == c))[:quota] for c, quota in zip(classes, quotas, strict=True)]
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[np.concatenate(test)] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def _proportional_quotas(sizes: npt.NDArray[np.integer], count: int) -> Indices:
    """Whole quotas that add up to `count` where possible, the largest remainders first."""
    exact = sizes * count / sizes.sum()
    quotas: Indices = np.minimum(np.floor(exact).astype(np.int64), sizes - 1)
    for index in np.argsort(quotas - exact, kind="stable"):
        if quotas.sum() < count and quotas[index] < sizes[index] - 1:
            quotas[index] += 1
    return quotas
