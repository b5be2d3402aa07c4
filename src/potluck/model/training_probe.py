"""Tries one training step on two samples before a run, so that what cannot work is refused at once, in one line."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from potluck.errors import ModelError, SettingError
from potluck.model.evaluation_score import EvaluationScore
from potluck.model.indexed_dataset import IndexedDataset
from potluck.model.input_spec import call_model, misfit_error
from potluck.model.metrics import TaskMetrics
from potluck.model.model_replica import Loss
from potluck.user_code import describe_user_error

__all__ = ["checked_loss", "probe_metrics", "probe_single_sample", "probe_training"]


def probe_training(module: nn.Module, loss: Loss, inputs: Any, targets: Any) -> None:
    """Compute a gradient with a copy of the model; ModelError if model, loss and data do not work together."""
    replica = copy.deepcopy(module).train()
    trained = [parameter for parameter in replica.parameters() if parameter.requires_grad]
    if not trained:
        raise ModelError("the model has no parameter that requires a gradient, so there is nothing to train")
    try:
        with torch.random.fork_rng(devices=[]):
            value = checked_loss(loss)(call_model(replica, inputs), targets)
            torch.autograd.grad(value, trained, allow_unused=True)
    except Exception as error:  # the user's model or loss may raise anything
        raise misfit_error(error, inputs) from error


def probe_single_sample(module: nn.Module, loss: Loss, samples: IndexedDataset, key: str) -> None:
    """Refuse batches of one sample, which the setting `key` asks for, if the model cannot train on them."""
    try:
        probe_training(module, loss, *samples.batch(np.arange(1)))
    except ModelError as error:
        reason = describe_user_error(error.__cause__ or error)
        raise SettingError(
            key, f"the model cannot train on one sample at a time ({reason}); use larger batches"
        ) from error


def probe_metrics(module: nn.Module, loss: Loss, metrics: TaskMetrics, samples: IndexedDataset) -> None:
    """Add two samples to the task's metrics; ModelError says what fails, and of the user's own code where."""
    if not metrics.listed or not len(samples):
        return
    inputs, targets = samples.batch(np.arange(min(2, len(samples))))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            outputs = call_model(copy.deepcopy(module).eval(), inputs)
            EvaluationScore(loss, metrics).add_batch(outputs, targets)
        except ModelError:
            raise
        except Exception as error:  # the user's model, loss or metric may raise anything
            raise ModelError(f"the test samples cannot be evaluated: {describe_user_error(error)}") from error


def checked_loss(loss: Loss) -> Loss:
    """The same loss; ModelError if its value cannot be trained on."""

    def compute(outputs: Any, targets: Any) -> Tensor:
        value = loss(outputs, targets)
        name = getattr(loss, "__name__", type(loss).__name__)
        if not isinstance(value, Tensor):
            raise ModelError(f"the loss {name!r} returns a {type(value).__name__}; return a tensor of one number")
        if value.numel() != 1:
            raise ModelError(
                f"the loss {name!r} returns {tuple(value.shape)} numbers; return one for the batch, such as their mean"
            )
        if not value.requires_grad:
            raise ModelError(
                f"the loss {name!r} has no gradient; compute it from the model's outputs with torch, without detach()"
            )
        return value

    return compute
