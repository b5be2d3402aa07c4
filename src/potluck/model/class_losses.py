"""A loss that notes how large it is for each class: no pass through the model, only another look at its outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from potluck.model.model_replica import Loss

__all__ = ["ClassLossRecorder"]


class ClassLossRecorder:
    """The loss as it is; `losses` are the means of each class over all that it was asked for."""

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
        return {one: self._sums[one] / count for one, count in self._counts.items()}

    def _record_classes(self, outputs: Tensor, targets: Tensor) -> None:
        for one in sorted(set(targets.tolist())):
            members = targets == one
            count = int(members.sum())
            mean = float(self._loss(outputs[members], targets[members]))
            self._sums[one] = self._sums.get(one, 0.0) + count * mean
            self._counts[one] = self._counts.get(one, 0) + count
