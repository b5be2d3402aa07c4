"""Which samples a device uses: all of its own classes, and for each of them one of the rest, drawn anew every epoch."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from potluck.errors import DataError

__all__ = ["balanced_batches", "expected_class_counts"]

Indices = npt.NDArray[np.int64]


def balanced_batches(
    labels: npt.NDArray[np.int64],
    own: Collection[int],
    size: int,
    rng: np.random.Generator,
    held: Indices | None = None,
) -> Iterator[Indices]:
    """One epoch of mini-batches out of the samples `held` (all, unless said); DataError if none is of its classes."""
    held = np.arange(len(labels)) if held is None else held
    mine = np.isin(labels[held], sorted(own))
    positives, rest = held[mine], held[~mine]
    if not len(positives):
        raise DataError(f"no sample of the classes {sorted(own)} to train them with; give the device other groups")
    negatives = rng.permutation(rest)[: len(positives)]
    order = rng.permutation(np.concatenate([positives, negatives]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def expected_class_counts(
    labels: npt.NDArray[np.int64], own: Collection[int], held: Indices | None = None
) -> dict[int, int]:
    """How many samples of each class an epoch of `balanced` has, on average and rounded."""
    chosen = labels if held is None else labels[held]
    values, numbers = np.unique(chosen, return_counts=True)
    counts = {int(value): int(number) for value, number in zip(values, numbers, strict=True)}
    positives = sum(counts.get(label, 0) for label in own)
    rest = sum(counts.values()) - positives
    share = min(1.0, positives / rest) if rest else 0.0
    return {label: count if label in own else round(count * share) for label, count in counts.items()}
