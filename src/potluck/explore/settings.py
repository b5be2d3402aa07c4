"""The settings of an exploration, and how a job determines them."""

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
    """What one evaluation does, and how many there are."""

    batches: Count = 64  # of the short training that scores a candidate
    batch: Annotated[int, msgspec.Meta(ge=2)] = 32
    lr: Positive = 0.05
    momentum: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.9
    warmup: Annotated[int, msgspec.Meta(ge=0)] = (
        128  # mini-batches of the full model before all evaluations: the common weights
    )
    held_out: Annotated[int, msgspec.Meta(ge=10)] = 2000  # training samples used for scoring only
    measure: Literal["accuracy", "loss"] = "accuracy"
    cost: Cost = "macs"  # MACs (or their time by the job's profile), or measured seconds of a step on this machine
    units: Literal["random", "leading"] = "random"  # as in the job's submodel
    scaled: bool | None = None  # by 1/(fraction kept), as in the job's submodel; by default if units are random
    static: bool = False  # norms without running statistics, as in the job's submodel
    repeats: Count = 3  # trainings per entry of the table; the search itself scores once
    highest_rate: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)] = 0.8
    grid: Count = 1  # keep a multiple of this many units; 8 suits the block size of convolutions
    uniform: Annotated[int, msgspec.Meta(ge=2)] = 9  # number of initial vectors with one rate for all channel sets
    population: Annotated[int, msgspec.Meta(ge=4)] = 32
    generations: Count = 20
    minutes: Positive | None = None  # stop the search after this time
    proxy: Literal["none", "alignment", "brief"] = (
        "none"  # what the search scores with; entries of the table are always trained
    )
    processes: Annotated[int, msgspec.Meta(ge=0)] = 2  # 0: in this process
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0

    @property
    def scales(self) -> bool:
        return self.units == "random" if self.scaled is None else self.scaled

    @property
    def evaluation_settings(self) -> dict[str, object]:
        """The settings that a score depends on."""
        names = (
            "batches", "batch", "lr", "momentum", "warmup", "held_out", "measure", "units", "scales", "static",
            "seed",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


def settings_from_job(job: Job) -> dict[str, Any]:
    """The Exploration settings that a job determines: a table is explored with the training that will use it."""
    return {"seed": job.seed, **_training_keys(job.rounds), **_submodel_keys(job.rounds.submodel)}


def _training_keys(rounds: Rounds) -> dict[str, Any]:
    """Batch size and optimizer: the device's, or the coordinator's where devices only send gradients."""
    keys: dict[str, Any] = {}
    if isinstance(rounds.batching, FixedBatching) and rounds.batching.size > 1:
        keys["batch"] = rounds.batching.size
    optimizer = rounds.local if isinstance(rounds.local, LocalSgd) else rounds.server
    if isinstance(optimizer, LocalSgd | Sgd):
        keys |= {"lr": optimizer.lr, "momentum": optimizer.momentum}
    return keys


def _submodel_keys(part: Submodel) -> dict[str, Any]:
    """Which units are kept and how, if the job drops units per mini-batch."""
    if not isinstance(part, FilterDropout | UniformDropout):
        return {}
    units = {"units": part.units} if isinstance(part, FilterDropout) else {}
    return {**units, "scaled": part.scaled, "static": part.static, "grid": part.grid}
