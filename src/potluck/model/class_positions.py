"""Brings a model's outputs and targets into the form that metrics count: predictions, classes and positions.

Outputs may be a tensor, a tuple, a dict or a Hugging Face `ModelOutput`; classes may be in dimension 1, PyTorch's
order, or in the last one. Targets of -100 are ignored, as PyTorch's cross-entropy ignores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from potluck.errors import ModelError

__all__ = [
    "IGNORED_TARGET",
    "ClassPositions",
    "class_positions",
    "has_class_labels",
    "number_pairs",
    "prediction_tensor",
    "target_tensor",
]

IGNORED_TARGET = -100


class ClassPositions(NamedTuple):
    """One row of class scores and one label for each position that counts; one column only: a binary logit."""

    scores: Tensor  # positions × classes
    labels: Tensor  # positions

    @property
    def is_binary(self) -> bool:
        return self.scores.shape[1] == 1

    @property
    def predicted(self) -> Tensor:
        """The predicted class of each position; 0 or 1 for a binary logit."""
        return (self.scores[:, 0] > 0).long() if self.is_binary else self.scores.argmax(1)


def prediction_tensor(outputs: Any) -> Tensor:
    """The tensor of predictions: the logits where the outputs name them, else the first that is no scalar."""
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    tensors: list[Tensor] = [outputs if logits is None else logits]
    if not isinstance(tensors[0], Tensor):
        tensors = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.ndim]
    if not tensors:
        raise ModelError(f"the model's outputs ({type(outputs).__name__}) hold no tensor to compute a metric from")
    return tensors[0]


def target_tensor(targets: Any) -> Tensor:
    """The tensor of targets: the labels where the targets name them, else the only one there is."""
    labels = targets.get("labels") if isinstance(targets, Mapping) else None
    tensors: list[Tensor] = [targets if labels is None else labels]
    if not isinstance(tensors[0], Tensor):
        tensors = [leaf for leaf in pytree.tree_leaves(targets) if isinstance(leaf, Tensor)]
    if len(tensors) != 1:
        raise ModelError(
            f"the targets consist of {len(tensors)} tensors and none is called 'labels'; use a metric of your own, a"
            " potluck.Metric whose function takes these targets"
        )
    return tensors[0]


def has_class_labels(outputs: Any, targets: Any) -> bool:
    """Whether the targets are class labels that the outputs have scores for."""
    if isinstance(targets, Tensor):
        labels = targets
    elif isinstance(targets, Mapping) and isinstance(targets.get("labels"), Tensor):
        labels = targets["labels"]
    else:
        return False
    if labels.dtype != torch.int64:
        return False
    try:
        scores = prediction_tensor(outputs)
    except ModelError:
        return False
    return scores.ndim == labels.ndim + 1 and _class_dimension(scores, labels, False) is not None


def class_positions(outputs: Any, targets: Any, classes_last: bool = False) -> ClassPositions:
    """The positions of a batch: samples, tokens or pixels."""
    scores, labels = prediction_tensor(outputs), target_tensor(targets)
    classes_last = classes_last or _is_model_output(outputs)
    dimension = _class_dimension(scores, labels, classes_last) if scores.ndim == labels.ndim + 1 else None
    if dimension is None and scores.numel() == labels.numel():  # one logit per label
        scores, dimension = scores.reshape(labels.shape).unsqueeze(-1), labels.ndim
    if dimension is None:
        raise ModelError(
            f"outputs of shape {tuple(scores.shape)} have no class scores for targets of shape {tuple(labels.shape)};"
            " classes are expected in dimension 1 or in the last one"
        )
    rows = scores.movedim(dimension, -1).reshape(-1, scores.shape[dimension])
    flat = labels.reshape(-1)
    if flat.is_floating_point():
        if not bool(((flat >= 0.0) & (flat <= 1.0)).all()):
            raise ModelError("the targets are numbers, not class labels or probabilities; use mae, rmse or r2")
        flat = flat > 0.5
    flat = flat.long()
    counted = flat != IGNORED_TARGET
    return ClassPositions(rows, flat) if bool(counted.all()) else ClassPositions(rows[counted], flat[counted])


def number_pairs(outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """Predicted and true numbers of equal shape in double precision."""
    predicted, actual = prediction_tensor(outputs), target_tensor(targets)
    if predicted.shape != actual.shape:
        if predicted.numel() != actual.numel() or len(predicted) != len(actual):
            raise ModelError(
                f"outputs of shape {tuple(predicted.shape)} cannot be compared with targets of shape"
                f" {tuple(actual.shape)} number by number"
            )
        predicted = predicted.reshape(actual.shape)
    return predicted.double(), actual.double()


def _class_dimension(scores: Tensor, labels: Tensor, classes_last: bool) -> int | None:
    """Which dimension of the scores is that of the classes; PyTorch's order where both would fit."""
    fits_last = scores.shape[:-1] == labels.shape
    if classes_last and fits_last:
        return scores.ndim - 1
    if scores.shape[:1] == labels.shape[:1] and scores.shape[2:] == labels.shape[1:]:
        return 1
    return scores.ndim - 1 if fits_last else None


def _is_model_output(outputs: Any) -> bool:
    """Whether these are the outputs of a Hugging Face model, whose classes come last."""
    return not isinstance(outputs, Tensor) and hasattr(outputs, "logits")
