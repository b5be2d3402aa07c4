"""What happens after a death: the kinds of recovery as parts of a job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Literal

import msgspec

from potluck.loops.pipeline.pipeline_planner import PipelinePlan, PipelinePlanner
from potluck.planning.partition import ShortMemoryError
from potluck.settings import Part

__all__ = ["NeighbourRecovery", "Recovery", "RepartitionRecovery", "RestartRecovery"]


class Recovery(Part, frozen=True, kw_only=True):
    """`recovery`: how a death is noticed, and where the layers go.

    `timer` waits until a batch has taken `factor` times the mean before anyone is asked; `connection` goes by the
    membership events. Without `consistent` every layer is taken in its newest copy, whatever version that is.
    """

    notice: Literal["connection", "timer"] = "connection"
    factor: Annotated[float, msgspec.Meta(ge=1.0)] = 2.0
    consistent: bool = True

    @property
    def restores_checkpoint(self) -> bool:
        """Whether all goes back to the latest checkpoint."""
        return False

    def plan_recovery(
        self, planner: PipelinePlanner, old: PipelinePlan | None, candidates: Sequence[str]
    ) -> PipelinePlan:
        """Who gets which layers, from those who are here."""
        return planner.plan_layout(candidates)


class RepartitionRecovery(Recovery, frozen=True, kw_only=True, tag="repartition"):
    """All layers are laid out anew over those who are left."""


class NeighbourRecovery(Recovery, frozen=True, kw_only=True, tag="neighbour"):
    """The next stage takes over the layers of the dead one, as in ResPipe; all is laid out anew where it lacks room."""

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
    """Everybody goes back to the latest checkpoint."""

    @property
    def restores_checkpoint(self) -> bool:
        return True


def layout_without(
    cuts: Sequence[int], order: Sequence[str], alive: Collection[str]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The layout in which a dead stage's layers belong to the next stage that lives, at the end to the one before."""
    left = [place for place, device in enumerate(order) if device in alive]
    begins = (0, *cuts)
    new_begins = [0, *(begins[before + 1] for before in left[:-1])]
    return tuple(new_begins[1:]), tuple(order[place] for place in left)
