"""What a job says of its mini-batches, so that a table is explored by the training that will use it."""

from __future__ import annotations

from typing import Any

from potluck.job import Job
from potluck.loops.parts.batching import FixedBatching
from potluck.loops.settings import Rounds
from potluck.model.local_training import LocalSgd
from potluck.model.optimizers import Sgd
from potluck.model.submodels.submodel_parts import FilterDropout, Submodel, UniformDropout

__all__ = ["settings_from_job"]


def settings_from_job(job: Job) -> dict[str, Any]:
    """The keys of an Exploration that a job decides; what it leaves open is not among them."""
    return {"seed": job.seed, **_training_keys(job.rounds), **_submodel_keys(job.rounds.submodel)}


def _training_keys(rounds: Rounds) -> dict[str, Any]:
    """Who steps is the device or, where devices only send gradients, the coordinator."""
    found: dict[str, Any] = {}
    if isinstance(rounds.batching, FixedBatching) and rounds.batching.size > 1:
        found["batch"] = rounds.batching.size
    steps = rounds.local if isinstance(rounds.local, LocalSgd) else rounds.server
    if isinstance(steps, LocalSgd | Sgd):
        found |= {"lr": steps.lr, "momentum": steps.momentum}
    return found


def _submodel_keys(part: Submodel) -> dict[str, Any]:
    """Which units are kept and how, where the job drops any in each mini-batch."""
    if not isinstance(part, FilterDropout | UniformDropout):
        return {}
    units = {"units": part.units} if isinstance(part, FilterDropout) else {}
    return {**units, "scaled": part.scaled, "static": part.static, "grid": part.grid}
