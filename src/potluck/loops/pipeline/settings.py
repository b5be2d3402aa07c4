"""The settings of the pipeline loop."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from potluck.loops.pipeline.partitioning import OptimalPartitioning, Partitioning
from potluck.loops.pipeline.recovery import Recovery, RepartitionRecovery
from potluck.loops.pipeline.replication import IncrementalReplication, Replication
from potluck.loops.pipeline.stage_schedules import OneFOneBSchedule, PipelineSchedule
from potluck.model.optimizers import ConstantSchedule, LearningRateSchedule, Optimizer, Sgd
from potluck.settings import Settings, doc
from potluck.units import Seconds

__all__ = ["Adaptation", "Pipeline"]

Count = Annotated[int, msgspec.Meta(ge=0)]


class Adaptation(Settings, frozen=True, kw_only=True):
    """`[pipeline.adaptation]`: when the partition is planned again."""

    first: Annotated[Count, doc("Batch after which the partition is first planned again, if `every` is not 0.")] = 10
    every: Annotated[Count, doc("Batches between two replans; 0 for never.")] = 100
    on_change: Annotated[bool, doc("Replan when a device's speed changes.")] = True
    join: Annotated[bool, doc("Include devices that join or return while the pipeline runs.")] = True
    horizon: Annotated[Count, doc("Batches within which moving layers must pay off; 0 accepts any gain.")] = 200


class Pipeline(Settings, frozen=True, kw_only=True):
    """`[pipeline]`: the layers are spread over the devices, and batches flow through them."""

    batch: Annotated[int, msgspec.Meta(ge=1), doc("Samples per batch; one round is one batch.")] = 128
    schedule: Annotated[PipelineSchedule, doc("Order of forward and backward passes on a stage.")] = OneFOneBSchedule()
    partition: Annotated[Partitioning, doc("Which device gets which layers.")] = OptimalPartitioning()
    between: Annotated[
        Literal["layers", "blocks"],
        doc("Where stages may be cut: between any two layers, or between the model's outer modules."),
    ] = "layers"
    replication: Annotated[Replication, doc("Where copies of the layers are stored, and how often.")] = (
        IncrementalReplication()
    )
    recovery: Annotated[Recovery, doc("What happens after a device is lost.")] = RepartitionRecovery()
    adaptation: Annotated[Adaptation, doc("When the partition is planned again.")] = Adaptation()
    optimizer: Annotated[Optimizer, doc("Optimizer of every stage.")] = Sgd(lr=0.05, momentum=0.9)
    lr_schedule: Annotated[LearningRateSchedule, doc("Factor on the learning rate, by batch.")] = ConstantSchedule()
    evaluation: Annotated[
        Literal["coordinator", "pipeline"],
        doc("Evaluate on the coordinator, which collects the layers, or by sending test batches through the pipeline."),
    ] = "coordinator"
    central: Annotated[str, doc("Device that holds the data and is stage 0; by default the first of the fleet.")] = ""
    sources: Annotated[tuple[str, ...], doc("Other devices that hold the data and may replace the central one.")] = ()
    retry: Annotated[Seconds, doc("Time until an unanswered request is sent again; doubles each time.")] = Seconds(2)
    patience: Annotated[Seconds, doc("Time without any progress after which the run gives up.")] = Seconds(1800)

    def __post_init__(self) -> None:
        for key in ("retry", "patience"):
            if not getattr(self, key) > 0:
                raise ValueError(f"`{key}` must be above 0")
