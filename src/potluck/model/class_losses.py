"""Records the loss of each class, from the outputs of passes that happen anyway."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from potluck.model.model_replica import Loss

__all__ = ["ClassLossRecorder"]


class ClassLossRecorder:
    """Wraps a loss; `mean_losses` are the means of each class over all calls."""

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
