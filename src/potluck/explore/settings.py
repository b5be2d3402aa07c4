"""How an exploration goes about it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from potluck.job import Job
from potluck.loops.parts.batching import FixedBatching
from potluck.loops.settings import Rounds
from potluck.model.local_training import LocalSgd
from potluck.model.optimizers import Sgd
from potluck.model.submodels.submodel_parts import FilterDropout, Submodel, UniformDropout
from potluck.planning.pareto_table import Cost
from potluck.settings import Settings

__all__ = ["Exploration", "settings_from_job"]

Positive = Annotated[float, msgspec.Meta(gt=0.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class Exploration(Settings, frozen=True, kw_only=True):
    """What one evaluation is, and how many there are."""

    batches: Count = 64  # of the short training that a vector of rates is judged by
    batch: Annotated[int, msgspec.Meta(ge=2)] = 32
    lr: Positive = 0.05
    momentum: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.9
    warmup: Annotated[int, msgspec.Meta(ge=0)] = 128  # mini-batches of the whole model, to the common weights
    held_out: Annotated[int, msgspec.Meta(ge=10)] = 2000  # training samples that only judge
    measure: Literal["accuracy", "loss"] = "accuracy"
    cost: Cost = "macs"  # what a vector costs: counted, or the time of a step on this machine
    units: Literal["random", "leading"] = "random"  # as the job's submodel has it
    scaled: bool | None = None  # by 1/(share kept), as the job's submodel has it (default: where units are random)
    static: bool = False  # norms without running statistics, as the job's submodel has it
    repeats: Count = 3  # of everything that ends up in the table; the search itself looks once
    highest_rate: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)] = 0.8
    grid: Count = 1  # keep multiples of so many units: 8 suits the blocks that convolutions compute in
    uniform: Annotated[int, msgspec.Meta(ge=2)] = 9  # vectors of one rate for all sets, to begin with
    population: Annotated[int, msgspec.Meta(ge=4)] = 32
    generations: Count = 20
    minutes: Positive | None = None  # stop searching after so long
    proxy: Literal["none", "alignment", "brief"] = "none"  # what the search judges by; the table is always trained
    processes: Annotated[int, msgspec.Meta(ge=0)] = 2  # 0: in this one
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0

    @property
    def scales(self) -> bool:
        return self.units == "random" if self.scaled is None else self.scaled

    @property
    def evaluation_settings(self) -> dict[str, object]:
        """The settings that an evaluation's result depends on."""
        names = (
            "batches", "batch", "lr", "momentum", "warmup", "held_out", "measure", "units", "scales", "static",
            "seed",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


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
