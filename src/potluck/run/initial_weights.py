"""The network that a run begins with: fresh from its seed, or with the numbers that the job's `start` names."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import nn

from potluck.errors import ModelError, SettingError
from potluck.job import Job
from potluck.model.decoupled.class_groups import ClassGroups
from potluck.model.weights_file import load_weights
from potluck.task import Task

__all__ = ["build_initial_module"]

_log = logging.getLogger("potluck")


def build_initial_module(job: Job, task: Task, elsewhere: bool) -> nn.Module:
    """The network; where its numbers come from `elsewhere` (a checkpoint, the coordinator), they are not looked for."""
    module = task.build_module(job.seed)
    if elsewhere:
        return module
    if job.start is None:
        _warn_if_untrained(job, task, module)
        return module
    try:
        load_weights(module, Path(job.start))
    except ModelError as error:
        raise SettingError("start", str(error)) from None
    return module


def _warn_if_untrained(job: Job, task: Task, module: nn.Module) -> None:
    part = job.rounds.submodel
    if not isinstance(part, ClassGroups) or (part.trunk != "frozen" and part.variant != "attributed"):
        return
    if _is_newly_initialised(job, task, module):
        key, what = ("trunk", "a frozen trunk") if part.trunk == "frozen" else ("variant", "attribution")
        _log.warning(
            "rounds.submodel.%s: %s makes sense for a trained network, and this one is fresh; train it briefly and"
            " give that run as `start`",
            key,
            what,
        )


def _is_newly_initialised(job: Job, task: Task, module: nn.Module) -> bool:
    """Whether the numbers are drawn by lot: another seed gives others."""
    if isinstance(task.model, nn.Module):
        return False
    other = task.build_module(job.seed + 1).state_dict()
    return any(not torch.equal(value, other[name]) for name, value in module.state_dict().items())
