"""Generates negative samples by scrambling a device's own, so that it can train without other devices' data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from potluck.data.samples import Indices, Samples

__all__ = ["ScrambledSamples", "scramble_inputs"]

_MAX_BLOCKS = 4  # per axis


class ScrambledSamples:
    """A device's samples by index, and the scrambled version of sample i by index −1 − i, labelled as no class."""

    needs_rng = True

    def __init__(self, own: Samples, label: int) -> None:
        self._own = own
        self._label = label

    def __len__(self) -> int:
        return 2 * len(self._own)

    def batch(self, indices: Indices, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        made = torch.from_numpy(indices < 0)
        inputs, labels = self._own.batch(np.where(indices < 0, -1 - indices, indices), rng)
        if bool(made.any()):
            inputs[made] = scramble_inputs(inputs[made], rng)
        return inputs, labels.masked_fill(made, self._label)


def scramble_inputs(inputs: Tensor, rng: np.random.Generator) -> Tensor:
    """Shuffle blocks along each spatial axis (or the feature axis), taking every second block from another sample.

    Local structure survives, the whole does not."""
    others = inputs[torch.from_numpy(rng.permutation(len(inputs)))]
    for side in range(2 if inputs.ndim > 2 else 1, inputs.ndim):
        size = inputs.shape[side]
        if size > 1:
            inputs = torch.cat(_shuffled_blocks(inputs, others, side, _random_edges(size, rng), rng), dim=side)
    return inputs


def _random_edges(size: int, rng: np.random.Generator) -> list[int]:
    blocks = int(rng.integers(2, min(_MAX_BLOCKS, size) + 1))
    return [0, *sorted((1 + rng.choice(size - 1, blocks - 1, replace=False)).tolist()), size]


def _shuffled_blocks(
    inputs: Tensor, others: Tensor, side: int, edges: list[int], rng: np.random.Generator
) -> list[Tensor]:
    order = rng.permutation(len(edges) - 1)
    if (order == np.arange(len(order))).all():
        order = order[::-1]
    return [
        (others if block % 2 else inputs).narrow(side, edges[block], edges[block + 1] - edges[block])
        for block in order.tolist()
    ]
