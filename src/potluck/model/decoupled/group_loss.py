"""The loss of a device's groups: each group distinguishes its own classes from one another and from all others.

Own classes and "other" have the same weight in every group, whatever the mix of the device's samples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["GroupLoss", "expected_class_counts"]


class GroupLoss:
    """The sum over groups of each group's cross-entropy over (own classes, other).

    `counts` are the samples of each class among those that batches are drawn from (including synthetic ones) and
    determine the weights. A group whose samples are all own or all other is not weighted. The losses are added
    rather than averaged so that a group learns the same whether alone or with others.
    """

    def __init__(self, own: Sequence[Sequence[int]], classes: int, counts: Mapping[int, int] | None = None) -> None:
        self._targets = [_label_positions(labels, classes) for labels in own]
        self._weights = [_class_weights(labels, counts) for labels in own]
        self._widths = [len(labels) + 1 for labels in own]

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        logits = torch.split(outputs, self._widths, dim=1)
        losses = [
            F.cross_entropy(group, targets[labels], weight=weights.to(group.dtype), reduction="none").mean()
            for group, targets, weights in zip(logits, self._targets, self._weights, strict=True)
        ]
        return torch.stack(losses).sum()


def expected_class_counts(
    labels: npt.NDArray[np.int64], own: Collection[int], shard: npt.NDArray[np.int64] | None = None
) -> dict[int, int]:
    """The samples of each class in an epoch of all own ones and as many others, on average and rounded."""
    present, numbers = np.unique(labels if shard is None else labels[shard], return_counts=True)
    counts = {int(label): int(number) for label, number in zip(present, numbers, strict=True)}
    positives = sum(counts.get(label, 0) for label in own)
    others = sum(counts.values()) - positives
    fraction = min(1.0, positives / others) if others else 0.0
    return {label: count if label in own else round(count * fraction) for label, count in counts.items()}


def _label_positions(own: Sequence[int], classes: int) -> Tensor:
    """The index of each label in the group's logits; labels of other and synthetic samples have the last one."""
    targets = torch.full((classes + 1,), len(own))
    targets[list(own)] = torch.arange(len(own))
    return targets


def _class_weights(own: Sequence[int], counts: Mapping[int, int] | None) -> Tensor:
    weights = torch.ones(len(own) + 1)
    if counts is not None:
        positives = sum(counts.get(label, 0) for label in own)
        others = sum(counts.values()) - positives
        if positives and others:
            total = positives + others
            weights[:-1], weights[-1] = total / (2 * positives), total / (2 * others)
    return weights
