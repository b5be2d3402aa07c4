"""Code that the cases name as `package.module:name`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import torch
from torch import Tensor

__all__ = ["dark_samples", "light_samples", "scaled_loss"]

Sample = tuple[np.ndarray, int]


def scaled_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half of the cross-entropy."""
    return torch.nn.functional.cross_entropy(outputs, targets) / 2


async def dark_samples(device: str) -> AsyncIterator[Sample]:
    """Three black pictures."""
    for label in range(3):
        yield np.zeros((1, 4, 4), np.uint8), label


async def light_samples(device: str) -> AsyncIterator[Sample]:
    """Three white pictures."""
    for label in range(3):
        yield np.ones((1, 4, 4), np.uint8), label
