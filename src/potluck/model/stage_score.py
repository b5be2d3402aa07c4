"""The score of an evaluation that flows through the stages of a pipeline, added up where the last layers are."""

from __future__ import annotations

from typing import Any

import torch

from potluck.model.evaluation_score import EvaluationScore
from potluck.model.input_spec import InputSpec
from potluck.payload import Payload

__all__ = ["StageScore"]


class StageScore:
    """The sums of an evaluation on the last stage."""

    def __init__(self, score: EvaluationScore, targets: InputSpec) -> None:
        self._score = score
        self._targets = targets

    def add_batch(self, outputs: Any, labels: Payload) -> None:
        """Add a batch's outputs, as the model returns them, and the labels that the first stage sent."""
        targets = self._targets.unflatten([torch.from_numpy(array) for array in labels.arrays])
        self._score.add_batch(outputs, targets)

    @property
    def sums(self) -> tuple[float, int, int]:
        """Loss times samples, correct predictions (-1: no accuracy), samples."""
        return self._score.loss, self._score.correct if self._score.has_classes else -1, self._score.count

    @property
    def positions(self) -> int:
        """What the correct predictions are a fraction of."""
        return self._score.positions

    @property
    def values(self) -> dict[str, float]:
        """The metrics that the task lists."""
        return self._score.listed_values()
