"""Setting test samples aside where the publisher did not, the same ones on every device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from potluck.data.samples import Indices

__all__ = ["split_holdout"]


def split_holdout(labels: npt.NDArray[np.integer], count: int, seed: int = 0) -> tuple[Indices, Indices]:
    """Sorted training and test indices; every class gives in proportion and keeps at least one sample to train on."""
    # NumPy promises that this older generator's stream never changes, so devices of any NumPy agree.
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
