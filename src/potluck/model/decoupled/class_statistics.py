"""Classes that a device has never seen, known to it by a few numbers only: negatives without anybody's samples.

Each device describes its own classes by what a frozen trunk makes of them: mean and variance of every feature and, if
asked, the few directions in which the class varies most. Others draw features from that. No sample leaves a device;
means over many samples do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.errors import DataError

__all__ = ["ClassStatistics", "describe_classes", "draw_features", "pool_statistics"]


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """One class at the split: its samples' number, mean, directions (rank, features), and the variance beside these."""

    count: int
    mean: Tensor
    variance: Tensor
    directions: Tensor
    least: float = 0.0  # features are never below it (behind a ReLU: 0)

    @property
    def nbytes(self) -> int:
        """What it takes to send it."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.mean, self.variance, self.directions))

    def sample_features(self, number: int, draws: torch.Generator) -> Tensor:
        """Features as of `number` samples of this class."""
        noise = torch.randn(number, *self.mean.shape, generator=draws) * self.variance.sqrt()
        along = torch.randn(number, len(self.directions), generator=draws) @ self.directions.flatten(1)
        return (self.mean + noise + along.view(number, *self.mean.shape)).clamp_min(self.least)


def describe_classes(
    features: Tensor, labels: Tensor, *, rank: int = 0, least_samples: int = 20
) -> dict[int, ClassStatistics]:
    """Each class among the labels; one of fewer than `least_samples` is left out, its mean would show them."""
    found = {}
    for label in sorted(set(labels.tolist())):
        own = features[labels == label]
        if len(own) >= least_samples:
            found[int(label)] = _describe_class(own, rank)
    return found


def pool_statistics(shares: Iterable[Mapping[int, ClassStatistics]]) -> dict[int, ClassStatistics]:
    """What several devices say of their classes as one; where two know a class, as if from all their samples.

    The directions are those of whoever has most samples; the variance is made up so that the total is right.
    """
    pooled: dict[int, ClassStatistics] = {}
    for share in shares:
        for label, found in share.items():
            pooled[label] = _combine_statistics(pooled[label], found) if label in pooled else found
    return pooled


def draw_features(
    statistics: Mapping[int, ClassStatistics], own: Collection[int], number: int, draws: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Features and labels of `number` samples of classes that are not one's own, evenly mixed."""
    others = sorted(set(statistics) - set(own))
    if not others:
        raise DataError("nobody has described a class beyond the device's own; there is nothing to tell them from")
    start = int(torch.randint(len(others), (1,), generator=draws))
    amounts = [(number + (place - start) % len(others)) // len(others) for place in range(len(others))]
    labels = torch.repeat_interleave(torch.tensor(others), torch.tensor(amounts))
    parts = [statistics[label].sample_features(amount, draws) for label, amount in zip(others, amounts, strict=True)]
    return torch.cat(parts), labels


def _describe_class(own: Tensor, rank: int) -> ClassStatistics:
    mean = own.mean(dim=0)
    directions = _principal_directions((own - mean).flatten(1), rank).view(-1, *mean.shape)
    left = (own.var(dim=0) - directions.square().sum(dim=0)).clamp_min(0)
    return ClassStatistics(len(own), mean, left, directions, float(own.min()))


def _principal_directions(centred: Tensor, rank: int) -> Tensor:
    """The directions of largest variance, each as long as its deviation."""
    samples, features = centred.shape
    rank = min(rank, samples - 1, features)
    if not rank:
        return centred.new_zeros(0, features)
    if features > samples:
        _, lengths, axes = torch.linalg.svd(centred / (samples - 1) ** 0.5, full_matrices=False)
        return torch.mul(lengths[:rank, None], axes[:rank])
    variances, columns = torch.linalg.eigh(centred.T @ centred / (samples - 1))
    return torch.mul(variances[-rank:].clamp_min(0).sqrt()[:, None], columns[:, -rank:].T)


def _combine_statistics(one: ClassStatistics, two: ClassStatistics) -> ClassStatistics:
    total = one.count + two.count
    shares = one.count / total, two.count / total
    mean = shares[0] * one.mean + shares[1] * two.mean
    spread = sum(
        share * (_total_variance(part) + (part.mean - mean).square())
        for share, part in zip(shares, (one, two), strict=True)
    )
    directions = max(one, two, key=lambda part: part.count).directions
    assert isinstance(spread, Tensor)
    left = (spread - directions.square().sum(dim=0)).clamp_min(0)
    return ClassStatistics(total, mean, left, directions, min(one.least, two.least))


def _total_variance(part: ClassStatistics) -> Tensor:
    return part.variance + part.directions.square().sum(dim=0)
