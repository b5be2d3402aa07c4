"""The settings of the pipeline loop."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from potluck.loops.pipeline.partitioning import OptimalPartitioning, Partitioning
from potluck.loops.pipeline.recovery import Recovery, RepartitionRecovery
from potluck.loops.pipeline.replication import IncrementalReplication, Replication
from potluck.loops.pipeline.stage_schedules import OneFOneBSchedule, PipelineSchedule
from potluck.model.optimizers import ConstantSchedule, LearningRateSchedule, Optimizer, Sgd
from potluck.settings import Settings
from potluck.units import Seconds

__all__ = ["Adaptation", "Pipeline"]

Count = Annotated[int, msgspec.Meta(ge=0)]


class Adaptation(Settings, frozen=True, kw_only=True):
    """When to reconsider the layout: at batch `first`, then every `every` batches (0: never), and on a change of speed.

    Moving must pay off within `horizon` batches; with 0 any gain suffices.
    """

    first: Count = 10
    every: Count = 100
    on_change: bool = True
    join: bool = True  # whether devices that join or return are included
    horizon: Count = 200


class Pipeline(Settings, frozen=True, kw_only=True):
    """`[pipeline]`: the layers are distributed over the devices, and batches flow through them."""

    batch: Annotated[int, msgspec.Meta(ge=1)] = 128
    schedule: PipelineSchedule = OneFOneBSchedule()
    partition: Partitioning = OptimalPartitioning()
    between: Literal["layers", "blocks"] = "layers"  # where cuts are allowed: blocks are the model's outer modules
    replication: Replication = IncrementalReplication()
    recovery: Recovery = RepartitionRecovery()
    adaptation: Adaptation = Adaptation()
    optimizer: Optimizer = Sgd(lr=0.05, momentum=0.9)
    lr_schedule: LearningRateSchedule = ConstantSchedule()
    evaluation: Literal["coordinator", "pipeline"] = "coordinator"  # where the model is evaluated
    central: str = ""  # the device that holds the data and is stage 0; the first of the fleet by default
    sources: tuple[str, ...] = ()  # other devices that hold the data and may replace it
    retry: Seconds = Seconds(2)  # until an unanswered request is sent again; doubles each time
    patience: Seconds = Seconds(1800)  # how long the run may go without progress before it fails

    def __post_init__(self) -> None:
        for key in ("retry", "patience"):
            if not getattr(self, key) > 0:
                raise ValueError(f"`{key}` must be above 0")
