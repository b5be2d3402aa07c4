"""The losses that a job can name, each a function of (outputs, targets).

Outputs are a tensor, or a Hugging Face `ModelOutput`, of which the logits are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from potluck.errors import ModelError

__all__ = ["LOSSES", "cross_entropy", "model_loss", "output_tensor", "token_cross_entropy"]


def output_tensor(outputs: Any) -> Any:
    """What losses and metrics compare with the targets: the logits of a `ModelOutput`, else the outputs themselves."""
    return outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", outputs)


def cross_entropy(outputs: Any, targets: Tensor) -> Tensor:
    """Cross-entropy with the classes in dimension 1, as PyTorch has it, or last where only that fits."""
    outputs = output_tensor(outputs)
    if isinstance(outputs, Tensor) and outputs.ndim > 2 and not targets.is_floating_point():
        channels_first = outputs.shape[2:] == targets.shape[1:]
        if outputs.shape[:-1] == targets.shape:
            if channels_first:
                shape = tuple(outputs.shape)
                raise ModelError(
                    f"outputs of shape {shape} may have their classes in dimension 1 or last; use the loss"
                    " 'token-cross-entropy' if they are last"
                )
            return token_cross_entropy(outputs, targets)
    return F.cross_entropy(outputs, targets)


def token_cross_entropy(outputs: Any, targets: Tensor) -> Tensor:
    """Cross-entropy of every position, with the classes in the last dimension; targets of -100 are ignored."""
    outputs = output_tensor(outputs)
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def model_loss(outputs: Any, targets: Any) -> Tensor:
    """The loss that a Hugging Face model computed itself, from the labels among its inputs."""
    loss = getattr(outputs, "loss", None)
    if not isinstance(loss, Tensor):
        raise ModelError(
            f"the loss 'model' needs a model that computes its own loss; this one returns a {type(outputs).__name__}"
            " without one"
        )
    return loss


def mse(outputs: Any, targets: Tensor) -> Tensor:
    return F.mse_loss(*_same_shape(outputs, targets, "mse"))


def l1(outputs: Any, targets: Tensor) -> Tensor:
    return F.l1_loss(*_same_shape(outputs, targets, "l1"))


def bce(outputs: Any, targets: Tensor) -> Tensor:
    """Binary cross-entropy of logits; targets are 0 or 1 of any dtype."""
    outputs, targets = _same_shape(outputs, targets, "bce")
    return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))


def _same_shape(outputs: Any, targets: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """A column of outputs for a vector of targets is common, and broadcasting the two would train on nonsense."""
    outputs = output_tensor(outputs)
    if outputs.shape == (*targets.shape, 1):
        outputs = outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        shapes = f"{tuple(outputs.shape)} and {tuple(targets.shape)}"
        raise ModelError(f"the loss '{loss}' needs outputs and targets of one shape, got {shapes}")
    return outputs, targets


LOSSES: dict[str, Callable[[Any, Any], Tensor]] = {
    "cross-entropy": cross_entropy,
    "token-cross-entropy": token_cross_entropy,
    "next-token": token_cross_entropy,  # the task shifts the targets
    "model": model_loss,
    "mse": mse,
    "l1": l1,
    "bce": bce,
}
