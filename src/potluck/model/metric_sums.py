"""Accumulates metrics over batches as sufficient statistics, so that the result does not depend on how data is batched.

accuracy, top-5      hits, positions             mae, rmse    sum of (squared) errors, numbers
perplexity           sum of losses, positions    r2           also the mean and spread of the targets
f1, mean-iou         true and false positives and false negatives of each class
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from potluck.errors import ModelError
from potluck.model.class_positions import IGNORED_TARGET, ClassPositions, class_positions, number_pairs
from potluck.model.input_spec import batch_size

__all__ = [
    "AccuracySum",
    "ClassOverlapSum",
    "ErrorSum",
    "F1Sum",
    "IntersectionSum",
    "MetricSum",
    "PerplexitySum",
    "R2Sum",
    "RootMeanSquareSum",
    "SampleMean",
    "TopFiveSum",
]


class MetricSum(Protocol):
    """A metric of the batches added so far."""

    def add_batch(self, outputs: Any, targets: Any) -> None: ...

    def value(self) -> float:
        """The metric over all batches; NaN where it is not defined."""


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


class SampleMean:
    """The mean of a function's values, weighted by the samples of each batch."""

    def __init__(self, function: Callable[[Any, Any], Tensor | float]) -> None:
        self._function = function
        self._sum, self._samples = 0.0, 0

    def add_batch(self, outputs: Any, targets: Any) -> None:
        samples = batch_size(targets)
        value = self._function(outputs, targets)
        try:
            self._sum += float(value) * samples
        except (TypeError, ValueError, RuntimeError):
            raise ModelError(f"its function must return one number, not a {type(value).__name__}") from None
        self._samples += samples

    def value(self) -> float:
        return _ratio(self._sum, self._samples)


class _ClassSum:
    """Base of metrics of class labels."""

    def __init__(self, classes_last: bool = False) -> None:
        self._classes_last = classes_last

    def add_batch(self, outputs: Any, targets: Any) -> None:
        self.add_positions(class_positions(outputs, targets, self._classes_last))

    def add_positions(self, positions: ClassPositions) -> None:
        raise NotImplementedError


class AccuracySum(_ClassSum):
    """The fraction of positions whose label was predicted."""

    def __init__(self, classes_last: bool = False) -> None:
        super().__init__(classes_last)
        self.hits, self.positions = 0, 0

    def add_labels(self, scores: Tensor, labels: Tensor) -> None:
        """Add samples × classes and a label for each sample, which is most of all evaluations."""
        self.hits += int((scores.argmax(1) == labels).sum())
        self.positions += len(labels) - int((labels == IGNORED_TARGET).sum())

    def add_positions(self, positions: ClassPositions) -> None:
        self.hits += self.count_hits(positions)
        self.positions += len(positions.labels)

    def count_hits(self, positions: ClassPositions) -> int:
        return int((positions.predicted == positions.labels).sum())

    def value(self) -> float:
        return _ratio(self.hits, self.positions)


class TopFiveSum(AccuracySum):
    """The fraction of positions whose label is among the five highest scores."""

    def count_hits(self, positions: ClassPositions) -> int:
        highest = positions.scores.topk(min(5, positions.scores.shape[1]), dim=1).indices
        return int((highest == positions.labels[:, None]).any(1).sum())


class PerplexitySum(_ClassSum):
    """The exponential of the mean cross-entropy of all positions."""

    def __init__(self, classes_last: bool = False) -> None:
        super().__init__(classes_last)
        self._loss, self._positions = 0.0, 0

    def add_positions(self, positions: ClassPositions) -> None:
        scores, labels = positions
        if positions.is_binary:
            loss = functional.binary_cross_entropy_with_logits(scores[:, 0], labels.to(scores.dtype), reduction="sum")
        else:
            loss = functional.cross_entropy(scores, labels, reduction="sum")
        self._loss += float(loss)
        self._positions += len(labels)

    def value(self) -> float:
        mean = _ratio(self._loss, self._positions)
        return math.exp(mean) if mean < 700.0 else mean if math.isnan(mean) else math.inf


class ClassOverlapSum(_ClassSum):
    """Base of metrics of predicted and true classes; the mean over the classes that occur in either.

    Of a binary logit only the positive class counts.
    """

    def __init__(self, classes_last: bool = False) -> None:
        super().__init__(classes_last)
        self._both = self._predicted = self._actual = torch.zeros(1, dtype=torch.int64)  # positions of each class
        self._first_class = 0

    def add_positions(self, positions: ClassPositions) -> None:
        classes, predicted, actual = max(2, positions.scores.shape[1]), positions.predicted, positions.labels
        self._both = self._both + torch.bincount(actual[predicted == actual], minlength=classes)
        self._predicted = self._predicted + torch.bincount(predicted, minlength=classes)
        self._actual = self._actual + torch.bincount(actual, minlength=classes)
        self._first_class = int(positions.is_binary)

    def value(self) -> float:
        occurs = self._predicted + self._actual > 0
        values = self.class_values()[self._first_class :][occurs[self._first_class :]]
        return float(values.mean()) if len(values) else math.nan

    def class_values(self) -> Tensor:
        raise NotImplementedError


class F1Sum(ClassOverlapSum):
    """Harmonic mean of precision and recall."""

    def class_values(self) -> Tensor:
        return 2 * self._both.double() / (self._predicted + self._actual)


class IntersectionSum(ClassOverlapSum):
    """Intersection over union."""

    def class_values(self) -> Tensor:
        return self._both.double() / (self._predicted + self._actual - self._both)


class ErrorSum:
    """The mean absolute error."""

    def __init__(self) -> None:
        self._sum, self._numbers = 0.0, 0

    def add_batch(self, outputs: Any, targets: Any) -> None:
        predicted, actual = number_pairs(outputs, targets)
        self._sum += float(self.errors(predicted - actual).sum())
        self._numbers += actual.numel()

    def errors(self, difference: Tensor) -> Tensor:
        return difference.abs()

    def value(self) -> float:
        return _ratio(self._sum, self._numbers)


class RootMeanSquareSum(ErrorSum):
    """The root of the mean squared error."""

    def errors(self, difference: Tensor) -> Tensor:
        return difference.square()

    def value(self) -> float:
        return math.sqrt(mean) if (mean := super().value()) >= 0 else math.nan


class R2Sum:
    """One minus the fraction of the targets' variance that is left; the mean over outputs, if there are several.

    Means and spreads of batches are merged (Chan et al.), which stays exact where the mean is far from 0.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._spread = self._residual = torch.zeros(0)

    def add_batch(self, outputs: Any, targets: Any) -> None:
        predicted, actual = number_pairs(outputs, targets)
        predicted, actual = predicted.reshape(len(predicted), -1), actual.reshape(len(actual), -1)
        count, mean = len(actual), actual.mean(0)
        spread, residual = (actual - mean).square().sum(0), (predicted - actual).square().sum(0)
        if self._count:
            total, apart = self._count + count, mean - self._mean
            spread = spread + self._spread + apart.square() * (self._count * count / total)
            mean, residual, count = self._mean + apart * (count / total), residual + self._residual, total
        self._count, self._mean, self._spread, self._residual = count, mean, spread, residual

    def value(self) -> float:
        varied = self._spread > 0
        return float((1 - self._residual[varied] / self._spread[varied]).mean()) if bool(varied.any()) else math.nan
