"""Builds the initial model: newly initialised from the seed, or loaded from the weights that `start` names."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import numpy as np
import torch
from torch import nn

from potluck.data import Dataset
from potluck.errors import ModelError, SettingError
from potluck.job import Job
from potluck.model.input_spec import InputSpec
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.lazy_layers import has_lazy_layers, initialise_lazy_layers
from potluck.model.shape_only import ShapeOnlyMode
from potluck.model.weights_file import load_weights as load_weights_file
from potluck.task import Task, TaskSettings, build_seeded

__all__ = ["build_initial_module", "input_spec", "trace_shape_only_chain"]

_log = logging.getLogger("potluck")


def build_initial_module(job: Job, task: Task, load_weights: bool) -> nn.Module:
    """The model; without `load_weights` a checkpoint or the coordinator has the weights that are trained.

    Its frozen weights are still those of `start`, where this machine has that file; digests show whether they are.
    """
    module = task.build_module(job.seed)
    if not load_weights:
        if job.start is not None and (Path(job.start).is_file() or Path(job.start).is_dir()):
            with contextlib.suppress(ModelError):
                load_weights_file(module, Path(job.start))
        return module
    if job.start is None:
        _warn_if_untrained(job, task, module)
        return module
    try:
        load_weights_file(module, Path(job.start))
    except ModelError as error:
        raise SettingError("start", str(error)) from None
    return module


def trace_shape_only_chain(job: Job, task: Task | None) -> LayerChain:
    """The model's layers without memory for weights, where only time is modelled; the data is not read."""
    if task is not None:
        return trace_layers(task.build_module(job.seed), input_spec(task.data))
    if not isinstance(job.task, TaskSettings):
        raise SettingError("timing_only", "needs a [task] table or a task given in Python")
    factory, spec = job.task.describe_model()
    with ShapeOnlyMode():
        module = build_seeded(factory, job.seed, f"the model of task {job.task.name!r}")
        if has_lazy_layers(module):
            initialise_lazy_layers(module, spec.meta_batch(1), job.seed)
    return trace_layers(module, spec)


def input_spec(data: Dataset) -> InputSpec:
    """What the model's inputs look like, by the first training sample."""
    return InputSpec.of_batch(data.train.batch(np.arange(1))[0])


def _warn_if_untrained(job: Job, task: Task, module: nn.Module) -> None:
    warning = job.rounds.submodel.untrained_warning() if job.pipeline is None else None
    if warning is not None and _is_newly_initialised(job, task, module):
        _log.warning(
            "%s, and this one is newly initialised; train it briefly and give that run as `start`",
            warning,
        )


def _is_newly_initialised(job: Job, task: Task, module: nn.Module) -> bool:
    """Whether the weights are random: another seed gives others."""
    if isinstance(task.model, nn.Module):
        return False
    other = task.build_module(job.seed + 1).state_dict()
    return any(not torch.equal(value, other[name]) for name, value in module.state_dict().items())
