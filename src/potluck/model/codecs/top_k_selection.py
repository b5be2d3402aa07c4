"""Selects exactly the largest of many values without sorting them; of equal ones those with the lowest index.

sample ──▶ a threshold that about the right number of values reach ──▶ candidates ──▶ the exact bound among them
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["largest_indices", "squared_norm"]

_SAMPLE = 1 << 16
_SERIAL = 1 << 15  # torch sums this many values in one thread, so the result does not depend on the threads


def largest_indices(values: Tensor, count: int) -> Tensor:
    """The indices of the `count` largest values, ascending; none may be NaN."""
    if count >= len(values):
        return torch.arange(len(values))
    candidates = _candidate_indices(values, count)
    if candidates is None:
        return _exact_mask(values, count).nonzero().view(-1)
    return candidates[_exact_mask(values[candidates], count)]


def squared_norm(vector: Tensor) -> float:
    """The sum of squares, in double precision."""
    blocks = (vector[start : start + _SERIAL] for start in range(0, len(vector), _SERIAL))
    return math.fsum(float(block.double().square().sum()) for block in blocks)


def _exact_mask(values: Tensor, count: int) -> Tensor:
    """A mask of the `count` largest values."""
    if count == 0:
        return torch.zeros(len(values), dtype=torch.bool)
    bound = values.kthvalue(len(values) - count + 1).values
    marked = values > bound
    equal = (values == bound).nonzero().view(-1)
    marked[equal[: count - int(marked.sum())]] = True
    return marked


def _candidate_indices(values: Tensor, count: int) -> Tensor | None:
    """Ascending indices of a few values that include the `count` largest and all equal ones; None for all values."""
    if len(values) < 4 * _SAMPLE:
        return None
    threshold = _sampled_threshold(values, count)
    candidates = np.flatnonzero(values.numpy() >= threshold)
    return torch.from_numpy(candidates) if count <= len(candidates) < len(values) // 2 else None


def _sampled_threshold(values: Tensor, count: int) -> float:
    """A threshold that about `count` values reach, almost surely no fewer, estimated from evenly spaced values."""
    step = len(values) // _SAMPLE | 1  # odd, so that it does not align with the rows of a weight matrix
    sample = values[::step]
    expected = count * len(sample) / len(values)
    rank = min(len(sample), math.ceil(expected + 4 * math.sqrt(expected)) + 4)
    return float(sample.kthvalue(len(sample) - rank + 1).values)
