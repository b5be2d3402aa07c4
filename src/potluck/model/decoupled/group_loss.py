"""The loss of a device's groups: each group distinguishes its own classes from one another and from all others.

Own classes and "other" have the same weight in every group, whatever the mix of the device's samples.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["DistillationLoss", "GroupLoss", "expected_class_counts"]


class GroupLoss:
    """The sum over groups of each group's cross-entropy over (own classes, other).

    `counts` are the samples of each class among those that batches are drawn from (including synthetic ones) and
    determine the weights. Where nobody knows them, as in a stream, `per_batch` takes those of each mini-batch. A group
    whose samples are all own or all other is not weighted. The losses are added rather than averaged so that a group
    learns the same whether alone or with others.
    """

    def __init__(
        self,
        own: Sequence[Sequence[int]],
        classes: int,
        counts: Mapping[int, int] | None = None,
        *,
        per_batch: bool = False,
    ) -> None:
        self._targets = [_label_positions(labels, classes) for labels in own]
        self._weights = [_class_weights(labels, counts) for labels in own]
        self._widths = [len(labels) + 1 for labels in own]
        self._per_batch = per_batch

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        logits = torch.split(outputs, self._widths, dim=1)
        losses = []
        for group, positions, weights in zip(logits, self._targets, self._weights, strict=True):
            targets = positions[labels]
            if self._per_batch:
                others = int((targets == group.shape[1] - 1).sum())
                weights = _balanced_weights(group.shape[1] - 1, len(targets) - others, others)
            losses.append(F.cross_entropy(group, targets, weight=weights.to(group.dtype), reduction="none").mean())
        return torch.stack(losses).sum()


class DistillationLoss:
    """A group's loss, with a weight for the assembled network's probabilities as soft targets.

    A group gives probabilities to its classes and to all others, with the prior of all data as in `group_readout`, and
    is compared with what the assembled network gives to these. Outputs are those of `DistilledSubmodel`.
    """

    def __init__(self, hard: GroupLoss, own: Sequence[Sequence[int]], classes: int, weight: float) -> None:
        self._hard = hard
        self._own = [list(labels) for labels in own]
        self._classes = classes
        self._weight = weight

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        raw, targets = outputs[:, : -self._classes], outputs[:, -self._classes :].detach()
        hard = self._hard(raw, labels)
        if not bool(targets.any()):  # no network to learn from so far
            return hard
        groups = zip(torch.split(raw, [len(own) + 1 for own in self._own], dim=1), self._own, strict=True)
        soft = torch.stack([self._group_divergence(logits, targets[:, own]) for logits, own in groups]).sum()
        return (1 - self._weight) * hard + self._weight * soft

    def _group_divergence(self, logits: Tensor, own_targets: Tensor) -> Tensor:
        own = own_targets.shape[1]
        shift = logits.new_zeros(own + 1)
        shift[-1] = math.log((self._classes - own) / own) if own < self._classes else 0.0
        other = (1 - own_targets.sum(dim=1, keepdim=True)).clamp_min(0.0)
        targets = torch.cat([own_targets, other], dim=1)
        return -(targets * (logits + shift).log_softmax(dim=1)).sum(dim=1).mean()


def expected_class_counts(
    labels: npt.NDArray[np.int64], own: Collection[int], shard: npt.NDArray[np.int64] | None = None
) -> dict[int, int]:
    """The samples of each class in an epoch of all own ones and as many others, on average and rounded."""
    present, frequencies = np.unique(labels if shard is None else labels[shard], return_counts=True)
    counts = {int(label): int(count) for label, count in zip(present, frequencies, strict=True)}
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
    positives = 0 if counts is None else sum(counts.get(label, 0) for label in own)
    others = 0 if counts is None else sum(counts.values()) - positives
    return _balanced_weights(len(own), positives, others)


def _balanced_weights(own: int, positives: int, others: int) -> Tensor:
    """Weights of the own classes and of "other" that give both the same total."""
    weights = torch.ones(own + 1)
    if positives and others:
        total = positives + others
        weights[:-1], weights[-1] = total / (2 * positives), total / (2 * others)
    return weights
