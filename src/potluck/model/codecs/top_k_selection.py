"""Exactly the largest of many numbers, found without sorting them; of equal ones those with the lowest index.

sample ──▶ a threshold that about the right number reaches ──▶ candidates ──▶ the exact bound among them
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["largest_indices", "squared_norm"]

_SAMPLE = 1 << 16
_SERIAL = 1 << 15  # numbers that torch sums in one thread, so that the sum does not depend on how many there are


def largest_indices(strengths: Tensor, count: int) -> Tensor:
    """The indices of the `count` largest, ascending; no NaN among them."""
    if count >= len(strengths):
        return torch.arange(len(strengths))
    candidates = _candidate_indices(strengths, count)
    if candidates is None:
        return _exact_mask(strengths, count).nonzero().view(-1)
    return candidates[_exact_mask(strengths[candidates], count)]


def squared_norm(vector: Tensor) -> float:
    """The sum of squares, in double precision."""
    parts = (vector[start : start + _SERIAL] for start in range(0, len(vector), _SERIAL))
    return math.fsum(float(part.double().square().sum()) for part in parts)


def _exact_mask(strengths: Tensor, count: int) -> Tensor:
    """Marks the `count` largest."""
    if count == 0:
        return torch.zeros(len(strengths), dtype=torch.bool)
    bound = strengths.kthvalue(len(strengths) - count + 1).values
    marked = strengths > bound
    equal = (strengths == bound).nonzero().view(-1)
    marked[equal[: count - int(marked.sum())]] = True
    return marked


def _candidate_indices(strengths: Tensor, count: int) -> Tensor | None:
    """Indices, ascending, of a few numbers that hold the `count` largest and all their equals; None: take all."""
    if len(strengths) < 4 * _SAMPLE:
        return None
    threshold = _sampled_threshold(strengths, count)
    found = np.flatnonzero(strengths.numpy() >= threshold)
    return torch.from_numpy(found) if count <= len(found) < len(strengths) // 2 else None


def _sampled_threshold(strengths: Tensor, count: int) -> float:
    """What about `count` numbers reach, and almost surely no fewer, judged by evenly spread ones."""
    step = len(strengths) // _SAMPLE | 1  # odd, so that it does not walk along the rows of a weight matrix
    sample = strengths[::step]
    expected = count * len(sample) / len(strengths)
    rank = min(len(sample), math.ceil(expected + 4 * math.sqrt(expected)) + 4)
    return float(sample.kthvalue(len(sample) - rank + 1).values)
