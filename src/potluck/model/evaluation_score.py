"""Adds up an evaluation over batches: the loss and the task's metrics; and the loss of each class during training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from potluck.errors import ModelError
from potluck.model.class_positions import has_class_labels, target_tensor
from potluck.model.indexed_dataset import IndexedDataset
from potluck.model.input_spec import batch_size
from potluck.model.losses import model_loss, token_cross_entropy
from potluck.model.metric_sums import AccuracySum
from potluck.model.metrics import TaskMetrics
from potluck.model.model_replica import Loss

__all__ = ["ClassLossRecorder", "EvaluationScore", "iter_evaluation_batches"]

_BATCH = 512  # samples
_MAX_OUTPUTS = 2**26  # numbers in the outputs of a batch


class EvaluationScore:
    """Sums over batches. Of a task that lists no metrics there is accuracy if all targets are class labels."""

    def __init__(self, loss: Loss, metrics: TaskMetrics | None = None) -> None:
        self._loss_function = loss
        self.loss, self.count = 0.0, 0
        classes_last = loss is token_cross_entropy or bool(getattr(loss, "classes_last", False))
        listed = None if metrics is None else metrics.listed
        # A model that computes its own loss may shift its labels, and does not say so.
        self._may_shift = loss is model_loss
        self.has_classes = listed is None
        self._accuracy = AccuracySum(classes_last)
        self._sums = {metric.name: metric.new_sum(classes_last) for metric in listed or ()}

    def add_batch(self, outputs: Any, targets: Any) -> None:
        samples = batch_size(targets)
        self.loss += float(self._loss_function(outputs, targets)) * samples
        self.count += samples
        if self.has_classes:
            self._add_accuracy(outputs, targets)
        for name, metric in self._sums.items():
            try:
                metric.add_batch(outputs, targets)
            except ModelError as error:
                raise ModelError(f"metric {name!r}: {error}") from None

    def _add_accuracy(self, outputs: Any, targets: Any) -> None:
        if _is_plain_batch(outputs, targets):
            self._accuracy.add_labels(outputs, targets)
            return
        self.has_classes = has_class_labels(outputs, targets) and not (
            self._may_shift and target_tensor(targets).ndim > 1
        )
        if self.has_classes:
            self._accuracy.add_batch(outputs, targets)

    @property
    def correct(self) -> int:
        """Positions whose label was predicted, of a task that lists no metrics."""
        return self._accuracy.hits

    @property
    def positions(self) -> int:
        """Positions that have a label, of a task that lists no metrics."""
        return self._accuracy.positions

    def listed_values(self) -> dict[str, float]:
        """The values of the metrics that the task lists."""
        return {name: metric.value() for name, metric in self._sums.items()}

    def as_metrics(self) -> dict[str, float]:
        """The loss and the metrics, by name; empty if there were no samples."""
        if not self.count:
            return {}
        accuracy = {"accuracy": self._accuracy.value()} if self.has_classes else {}
        return {"loss": self.loss / self.count, **accuracy, **self.listed_values()}


def _is_plain_batch(outputs: Any, targets: Any) -> bool:
    """Whether these are scores of classes and one label for each sample."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or targets.dtype != torch.int64:
        return False
    return outputs.ndim == 2 and targets.ndim == 1 and outputs.shape[1] > 1


def iter_evaluation_batches(samples: IndexedDataset, run_model: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
    """All samples in batches; smaller ones where targets have several positions and outputs are large.

    The logits of a vocabulary for every token of 512 texts may not fit into memory.
    """
    if not len(samples):
        return
    size, start, first = _BATCH, 0, samples.batch(np.arange(min(_BATCH, len(samples))))
    if any(leaf[0].numel() > 1 for leaf in pytree.tree_leaves(first[1]) if len(leaf)):
        outputs = pytree.tree_leaves(run_model(samples.batch(np.arange(1))[0]))
        numbers = sum(leaf.numel() for leaf in outputs if isinstance(leaf, Tensor))
        size = max(1, min(_BATCH, _MAX_OUTPUTS // max(1, numbers)))
    if size == _BATCH:
        yield first
        start = _BATCH
    for begin in range(start, len(samples), size):
        yield samples.batch(np.arange(begin, min(begin + size, len(samples))))


class ClassLossRecorder:
    """Wraps a loss, so that no extra pass is needed; `mean_losses` are the means of each class over all calls."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._sums: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def __call__(self, outputs: Any, targets: Tensor) -> Tensor:
        loss = self._loss(outputs, targets)
        if isinstance(outputs, Tensor) and targets.dtype == torch.int64 and outputs.shape[:1] == targets.shape:
            with torch.no_grad():
                self._record_classes(outputs.detach(), targets)
        return loss

    @property
    def mean_losses(self) -> dict[int, float]:
        return {label: self._sums[label] / count for label, count in self._counts.items()}

    def _record_classes(self, outputs: Tensor, targets: Tensor) -> None:
        for label in sorted(set(targets.tolist())):
            members = targets == label
            count = int(members.sum())
            mean = float(self._loss(outputs[members], targets[members]))
            self._sums[label] = self._sums.get(label, 0.0) + count * mean
            self._counts[label] = self._counts.get(label, 0) + count
