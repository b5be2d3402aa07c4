"""How an exploration goes about it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from potluck.planning.pareto_table import Cost
from potluck.settings import Settings

__all__ = ["Exploration"]

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
