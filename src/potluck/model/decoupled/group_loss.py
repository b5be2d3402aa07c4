"""The loss of a device's groups: each group tells its own classes from one another and from all others.

Own classes and "other" weigh the same in every group, however the device's samples are mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["GroupLoss"]


class GroupLoss:
    """Of (a sub-model's outputs, labels): each group's cross-entropy over (own classes, other), added up.

    `counts` are the numbers of samples of each class among those that batches are drawn from (synthetic ones too);
    from them come the weights. A group whose samples are all own or all other is not weighted. Adding up
    rather than averaging lets a group learn alike alone and in company.
    """

    def __init__(self, own: Sequence[Sequence[int]], classes: int, counts: Mapping[int, int] | None = None) -> None:
        self._targets = [_label_positions(labels, classes) for labels in own]
        self._weights = [_class_weights(labels, counts) for labels in own]
        self._widths = [len(labels) + 1 for labels in own]

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        logits = torch.split(outputs, self._widths, dim=1)
        losses = [
            F.cross_entropy(part, targets[labels], weight=weights.to(part.dtype), reduction="none").mean()
            for part, targets, weights in zip(logits, self._targets, self._weights, strict=True)
        ]
        return torch.stack(losses).sum()


def _label_positions(own: Sequence[int], classes: int) -> Tensor:
    """Where in the group's logits each label is found; those of others, and of what was made up, in the last place."""
    targets = torch.full((classes + 1,), len(own))
    targets[list(own)] = torch.arange(len(own))
    return targets


def _class_weights(own: Sequence[int], counts: Mapping[int, int] | None) -> Tensor:
    weights = torch.ones(len(own) + 1)
    if counts is not None:
        mine = sum(counts.get(label, 0) for label in own)
        rest = sum(counts.values()) - mine
        if mine and rest:
            weights[:-1], weights[-1] = (mine + rest) / (2 * mine), (mine + rest) / (2 * rest)
    return weights
