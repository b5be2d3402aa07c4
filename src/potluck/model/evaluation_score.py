"""Adds up loss and accuracy over the batches of an evaluation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from potluck.model.model_replica import Loss

__all__ = ["EvaluationScore"]


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
