"""The settings of an exploration, and how a job determines them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from potluck.job import Job
from potluck.loops.parts.batching import FixedBatching
from potluck.loops.settings import Rounds
from potluck.model.local_training import LocalSgd, LocalSteps
from potluck.model.optimizers import Sgd
from potluck.planning.pareto_table import Cost
from potluck.settings import Settings, doc

__all__ = ["Exploration", "settings_from_job"]

Positive = Annotated[float, msgspec.Meta(gt=0.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class Exploration(Settings, frozen=True, kw_only=True):
    """`potluck explore --with KEY=VALUE`: how sub-models are evaluated and searched."""

    batches: Annotated[Count, doc("Mini-batches of the short training that evaluates a sub-model.")] = 64
    batch: Annotated[int, msgspec.Meta(ge=2), doc("Samples per mini-batch.")] = 32
    lr: Annotated[Positive, doc("Learning rate.")] = 0.05
    momentum: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0), doc("Momentum.")] = 0.9
    warmup: Annotated[
        int, msgspec.Meta(ge=0), doc("Mini-batches that train the whole model to the common initial weights.")
    ] = 128
    held_out: Annotated[int, msgspec.Meta(ge=10), doc("Training samples that are used for evaluation only.")] = 2000
    measure: Annotated[Literal["accuracy", "loss"], doc("What an evaluation returns.")] = "accuracy"
    cost: Annotated[
        Cost,
        doc("Cost of a sub-model: MACs, weighted by a device's profile if there is one, or time on this machine."),
    ] = "macs"
    units: Annotated[
        Literal["random", "leading"], doc("Keep random filters or the leading ones, as in the job's submodel.")
    ] = "random"
    scaled: Annotated[
        bool | None, doc("Scale by 1 / (fraction kept), as in the job's submodel; by default if `units` is `random`.")
    ] = None
    static: Annotated[bool, doc("Use batch norm without running statistics, as in the job's submodel.")] = False
    mixed: Annotated[
        bool,
        doc("Train every other mini-batch at a random rate for all layers, as other devices of an uneven fleet do."),
    ] = False
    repeats: Annotated[Count, doc("Evaluations of each sub-model of the final table; the search evaluates once.")] = 3
    highest_rate: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0), doc("Highest dropout rate of a channel set.")] = 0.8
    grid: Annotated[
        Count, doc("Keep multiples of this many filters; 8 suits the blocks in which convolutions compute.")
    ] = 1
    uniform: Annotated[
        int, msgspec.Meta(ge=2), doc("Sub-models with one rate for all layers in the first generation.")
    ] = 9
    population: Annotated[int, msgspec.Meta(ge=4), doc("Sub-models per generation.")] = 32
    generations: Annotated[Count, doc("Generations of the search.")] = 20
    minutes: Annotated[Positive | None, doc("Minutes after which the search stops.")] = None
    proxy: Annotated[
        Literal["none", "alignment", "brief"],
        doc("Cheaper evaluation that the search uses; the final table is always trained."),
    ] = "none"
    processes: Annotated[int, msgspec.Meta(ge=0), doc("Worker processes; 0 evaluates in this process.")] = 2
    seed: Annotated[int, msgspec.Meta(ge=0), doc("Seed of the search.")] = 0

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
        known = {name: getattr(self, name) for name in names}
        if self.mixed:  # only then do the other rates matter
            known |= {"mixed": True, "highest_rate": self.highest_rate, "grid": self.grid}
        return known


def settings_from_job(job: Job) -> dict[str, Any]:
    """The Exploration settings that a job determines: a table is explored with the training that will use it."""
    return {"seed": job.seed, **_training_keys(job.rounds), **job.rounds.submodel.exploration_settings}


def _training_keys(rounds: Rounds) -> dict[str, Any]:
    """Batch size and optimizer: the device's, or the coordinator's where devices only send gradients."""
    keys: dict[str, Any] = {}
    if isinstance(rounds.batching, FixedBatching) and rounds.batching.size > 1:
        keys["batch"] = rounds.batching.size
    optimizer = rounds.local if isinstance(rounds.local, LocalSteps) else rounds.server
    if isinstance(optimizer, LocalSgd | Sgd):
        keys |= {"lr": optimizer.lr, "momentum": optimizer.momentum}
    return keys
