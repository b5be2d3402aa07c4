"""Samples of no class, made of a device's own: something to tell its classes from without anybody else's data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from potluck.data.samples import Indices, Samples

__all__ = ["ScrambledSamples", "scramble_inputs"]

_MOST_PIECES = 4  # into which a side of a sample is cut


class ScrambledSamples:
    """A device's own samples by index, and by −1 − index what is made of one; that has a label beyond all classes."""

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
    """Each side of the pictures (or the row of features) cut into a few pieces in another order, every second of which
    comes from another sample: alike near by, and no whole any more."""
    others = inputs[torch.from_numpy(rng.permutation(len(inputs)))]
    for side in range(2 if inputs.ndim > 2 else 1, inputs.ndim):
        size = inputs.shape[side]
        if size > 1:
            inputs = torch.cat(_shuffled_blocks(inputs, others, side, _random_edges(size, rng), rng), dim=side)
    return inputs


def _random_edges(size: int, rng: np.random.Generator) -> list[int]:
    pieces = int(rng.integers(2, min(_MOST_PIECES, size) + 1))
    return [0, *sorted((1 + rng.choice(size - 1, pieces - 1, replace=False)).tolist()), size]


def _shuffled_blocks(
    inputs: Tensor, others: Tensor, side: int, edges: list[int], rng: np.random.Generator
) -> list[Tensor]:
    order = rng.permutation(len(edges) - 1)
    if (order == np.arange(len(order))).all():
        order = order[::-1]
    return [
        (others if place % 2 else inputs).narrow(side, edges[place], edges[place + 1] - edges[place])
        for place in order.tolist()
    ]
