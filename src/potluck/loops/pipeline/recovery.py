"""What happens after a device dies: the kinds of recovery as parts of a job."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from potluck.loops.pipeline.pipeline_planner import PipelinePlan, PipelinePlanner
from potluck.planning.partition import ShortMemoryError
from potluck.settings import Part, doc

__all__ = ["NeighbourRecovery", "Recovery", "RepartitionRecovery", "RestartRecovery"]


class Recovery(Part, frozen=True, kw_only=True):
    """What happens after a device is lost."""

    notice: Annotated[
        Literal["connection", "timer"], doc("Notice a loss by the connection, or by a batch that takes too long.")
    ] = "connection"
    factor: Annotated[
        float,
        msgspec.Meta(ge=1.0),
        doc("With `timer`: how many times the mean a batch may take before the stages are asked."),
    ] = 2.0
    consistent: Annotated[bool, doc("Restore one version of all layers; otherwise the newest copy of each layer.")] = (
        True
    )

    def unused_keys(self) -> Mapping[str, str]:
        return {} if self.notice == "timer" else {"factor": 'unless notice = "timer"'}

    @property
    def restores_checkpoint(self) -> bool:
        """Whether the run restarts from the latest checkpoint."""
        return False

    def plan_recovery(
        self, planner: PipelinePlanner, old: PipelinePlan | None, candidates: Sequence[str]
    ) -> PipelinePlan:
        """The layout over the candidates."""
        return planner.plan_layout(candidates)


class RepartitionRecovery(Recovery, frozen=True, kw_only=True, tag="repartition"):
    """Partitions all layers again over the remaining devices."""


class NeighbourRecovery(Recovery, frozen=True, kw_only=True, tag="neighbour"):
    """The next stage takes over the lost layers (ResPipe); `repartition` if its memory is too small."""

    def plan_recovery(
        self, planner: PipelinePlanner, old: PipelinePlan | None, candidates: Sequence[str]
    ) -> PipelinePlan:
        if old is None or old.order[0] not in candidates:
            return planner.plan_layout(candidates)
        try:
            return planner.plan_fixed_layout(*layout_without(old.cuts, old.order, candidates))
        except ShortMemoryError:
            return planner.plan_layout(candidates)


class RestartRecovery(Recovery, frozen=True, kw_only=True, tag="restart"):
    """All devices return to the latest checkpoint."""

    @property
    def restores_checkpoint(self) -> bool:
        return True


def layout_without(
    cuts: Sequence[int], order: Sequence[str], alive: Collection[str]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The layout in which a dead stage's layers go to the next stage that is alive, or else to the previous one."""
    remaining = [index for index, device in enumerate(order) if device in alive]
    begins = (0, *cuts)
    new_begins = [0, *(begins[before + 1] for before in remaining[:-1])]
    return tuple(new_begins[1:]), tuple(order[index] for index in remaining)
