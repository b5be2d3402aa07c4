"""Adds up losses over batches: loss and accuracy of an evaluation, and the loss of each class during training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from potluck.model.model_replica import Loss

__all__ = ["ClassLossRecorder", "EvaluationScore"]


class EvaluationScore:
    """Sums over batches; there is no accuracy unless all targets are class labels."""

    def __init__(self) -> None:
        self.loss, self.correct, self.count = 0.0, 0, 0
        self.has_classes = True

    def add_batch(self, outputs: Any, targets: Tensor, loss: Loss) -> None:
        self.loss += float(loss(outputs, targets)) * len(targets)
        self.count += len(targets)
        labelled = isinstance(outputs, Tensor) and outputs.ndim == 2 and targets.dtype == torch.int64
        self.has_classes = self.has_classes and labelled
        if self.has_classes:
            self.correct += int((outputs.argmax(1) == targets).sum())

    def as_metrics(self) -> dict[str, float]:
        metrics = {"loss": self.loss / self.count}
        return {**metrics, "accuracy": self.correct / self.count} if self.has_classes else metrics


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
