"""Finds the largest entries of a vector without sorting it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["largest_indices"]

_SAMPLE = 1 << 16


def largest_indices(values: Tensor, count: int) -> Tensor:
    """The indices of the `count` largest values, ascending, without sorting them; none may be NaN.

    Of equal values, those with the lowest index count. A sample gives a threshold that about the right number of values
    reach; the exact bound is determined among these candidates.
    """
    if count >= len(values):
        return torch.arange(len(values))
    candidates = _candidate_indices(values, count)
    if candidates is None:
        return _exact_mask(values, count).nonzero().view(-1)
    return candidates[_exact_mask(values[candidates], count)]


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
