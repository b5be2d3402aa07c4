"""The settings of the pipeline loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from potluck.loops.pipeline.partitioning import OptimalPartitioning, Partitioning
from potluck.loops.pipeline.recovery import Recovery, RepartitionRecovery
from potluck.loops.pipeline.replication import IncrementalReplication, Replication
from potluck.loops.pipeline.stage_schedules import OneFOneBSchedule, PipelineSchedule
from potluck.model.lr_schedules import ConstantSchedule, LearningRateSchedule
from potluck.model.optimizers import Optimizer, Sgd
from potluck.settings import Settings, doc
from potluck.units import Seconds

__all__ = ["Adaptation", "Pipeline"]

Count = Annotated[int, msgspec.Meta(ge=0)]


class Adaptation(Settings, frozen=True, kw_only=True):
    """`[pipeline.adaptation]`: when the partition is planned again."""

    first: Annotated[Count, doc("Batch after which the partition is first planned again, if `every` is not 0.")] = 10
    every: Annotated[Count, doc("Batches between two replans; 0 for never.")] = 100
    on_change: Annotated[bool, doc("Replan when a device's speed or link changes, or new layer times are known.")] = (
        True
    )
    layers: Annotated[
        bool, doc("Learn the time of each layer from the stages that run it, not only the speed of each device.")
    ] = True
    join: Annotated[bool, doc("Include devices that join or return while the pipeline runs.")] = True
    horizon: Annotated[Count, doc("Batches within which moving layers must pay off; 0 accepts any gain.")] = 200

    def unused_keys(self) -> Mapping[str, str]:
        unused = {} if self.every else {"first": "while `every` is 0"}
        if not (self.every or self.on_change or self.join):
            unused["horizon"] = "while `every` is 0, and `on_change` and `join` are false"
        return unused


class Pipeline(Settings, frozen=True, kw_only=True):
    """`[pipeline]`: the layers are spread over the devices, and batches flow through them."""

    batch: Annotated[int, msgspec.Meta(ge=1), doc("Samples per batch; one round is one batch.")] = 128
    schedule: Annotated[PipelineSchedule, doc("Order of forward and backward passes on a stage.")] = OneFOneBSchedule()
    partition: Annotated[Partitioning, doc("Which device gets which layers.")] = OptimalPartitioning()
    layer_costs: Annotated[
        Literal["measured", "profiles", "macs"],
        doc(
            "What the first partition is planned from: times of every layer that the central device measures at the"
            " start, the fleet's profiles, or MACs."
        ),
    ] = "measured"
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
    data_copies: Annotated[
        int,
        msgspec.Meta(ge=1),
        doc(
            "Devices that hold the data: `central`, `sources` and as many of the next ones of the fleet. When the first"
            " stage dies, the next of them continues with the same batches. Each loads the data itself, as the task"
            " says."
        ),
    ] = 1
    retry: Annotated[Seconds, doc("Time until an unanswered request is sent again; doubles each time.")] = Seconds(2)
    patience: Annotated[Seconds, doc("Time without any progress after which the run gives up.")] = Seconds(1800)

    def unused_keys(self) -> Mapping[str, str]:
        unused = {}
        if self.schedule.most_stages == 1:
            unused = dict.fromkeys(("partition", "between"), "on a single device")
        if self.data_copies < len({self.central, *self.sources}):
            unused["data_copies"] = "beside so many `sources`"
        if not self.optimizer.predicts_steps:
            unused["schedule.predict"] = "with an optimizer whose next step cannot be predicted (sgd without momentum)"
        if not self.optimizer.has_state:
            unused["replication.optimizer_state"] = "with an optimizer that has no state (sgd without momentum)"
        return unused

    def data_holders(self, fleet: Sequence[str]) -> tuple[str, ...]:
        """The devices that hold the data and may be the first stage, in order of preference."""
        named = dict.fromkeys((self.central or fleet[0], *self.sources))
        others = [name for name in fleet if name not in named]
        return (*named, *others[: max(0, self.data_copies - len(named))])

    def __post_init__(self) -> None:
        for key in ("retry", "patience"):
            if not getattr(self, key) > 0:
                raise ValueError(f"`{key}` must be above 0")
