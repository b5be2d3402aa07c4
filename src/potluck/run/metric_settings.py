"""What a job says about metrics, checked against those of its task before the run begins."""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from potluck.errors import SettingError
from potluck.job import Job
from potluck.model.lr_schedules import LearningRateSchedule
from potluck.model.metrics import TaskMetrics, resolve_metrics
from potluck.model.submodels.submodel_parts import Submodel
from potluck.task import Task

__all__ = ["best_metric", "check_metric_settings", "followed_metrics"]

_log = logging.getLogger("potluck")


def check_metric_settings(job: Job, task: Task) -> TaskMetrics:
    """The task's metrics; SettingError if the job stops, saves or schedules by one that the task does not have."""
    metrics, settings = resolve_metrics(task.metrics), followed_metrics(job)
    for key, name in settings.items():
        metrics.direction_of(name, key)
    for name, value in job.stop.metrics.items():
        metrics.check_target(name, value, f"stop.metrics.{name}")
    if "best" in settings and _assembles_model(job):
        raise SettingError("best", "this sub-model is assembled at the end of a run only; leave it out")
    if not len(task.data.test):
        for key in settings:
            raise SettingError(key, f"data set {task.data.name!r} has no test samples to measure it on")
        _log.warning("data set %r has no test samples: the model is not evaluated", task.data.name)
    elif metrics.listed is None and "accuracy" in settings.values() and not _has_labels(task):
        key = next(key for key, name in settings.items() if name == "accuracy")
        raise SettingError(key, "the task has no accuracy: its targets are not class labels; its only metric is loss")
    return metrics


def followed_metrics(job: Job) -> dict[str, str]:
    """The metrics that the job's settings name, by the path of the setting."""
    named = {f"stop.metrics.{name}": name for name in job.stop.metrics}
    if job.stop.accuracy is not None:
        named["stop.accuracy"] = "accuracy"
    if job.best not in ("", "none"):
        named["best"] = job.best
    for key, schedule in _lr_schedules(job).items():
        if schedule.followed_metric is not None:
            named[f"{key}.metric"] = schedule.followed_metric
    return named


def best_metric(job: Job, metrics: TaskMetrics) -> str | None:
    """The metric by which the best model is kept, if any."""
    if job.best == "none" or (not job.best and _assembles_model(job)):
        return None
    return job.best or metrics.first


def _assembles_model(job: Job) -> bool:
    """Whether the sub-model part puts the trained model together in its own way, at the end of a run."""
    return job.pipeline is None and type(job.rounds.submodel).save_model is not Submodel.save_model


def _lr_schedules(job: Job) -> dict[str, LearningRateSchedule]:
    if job.pipeline is not None:
        return {"pipeline.lr_schedule": job.pipeline.lr_schedule}
    return {"rounds.schedule": job.rounds.schedule, "rounds.local_schedule": job.rounds.local_schedule}


def _has_labels(task: Task) -> bool:
    """Whether the targets are class labels, as far as one sample tells."""
    leaves = pytree.tree_leaves(task.data.test.batch(np.arange(1))[1])
    return all(isinstance(leaf, Tensor) and leaf.dtype == torch.int64 for leaf in leaves)
