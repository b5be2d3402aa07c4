"""Model transfer: how pull and push are cut into segments, planned for every turn from the device's estimates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple

import msgspec

from potluck.loops.device_costs import DeviceCosts
from potluck.loops.device_estimates import DeviceEstimates
from potluck.planning.segments import (
    DuplexSchedule,
    RequestWindow,
    Strategy,
    TransferTiming,
    WorkerCosts,
    plan_duplex_turn,
    plan_segments,
    plan_windowed_pull,
)
from potluck.settings import Part, doc

__all__ = [
    "DuplexTransfer",
    "IbatchTransfer",
    "LayerByLayerTransfer",
    "MgWfbpTransfer",
    "ModelTransfer",
    "OptimalTransfer",
    "SequentialTransfer",
    "TurnSegments",
]

Range = tuple[int, int]


class TurnSegments(NamedTuple):
    """A turn's segments as (first, last) layer, in transfer order."""

    pull: tuple[Range, ...]
    push: tuple[Range, ...]


class ModelTransfer(Part, frozen=True, kw_only=True):
    """Plans how a turn's transfers are cut."""

    strategy: ClassVar[Strategy]
    drafts_next_round: ClassVar[bool] = False  # whether the next round begins before this one is over
    split_layer_fraction: ClassVar[float | None] = None  # of the model: a larger layer may be cut inside
    uses_estimates: ClassVar[bool] = True  # whether the plan depends on the device's estimates

    window: Annotated[
        int, msgspec.Meta(ge=1), doc("Segment requests in flight; with 1 every segment pays the round trip.")
    ] = 2

    def plan_segments(self, costs: DeviceCosts, estimates: DeviceEstimates, samples: int) -> TurnSegments:
        round_trip_s = estimates.round_trip if self.window == 1 else 0.0
        forward, backward, pulled, pushed = self.layer_times_s(costs, estimates, samples)
        if self.strategy == "optimal" and self.window > 1:
            window = RequestWindow(self.window, estimates.round_trip)
            pull = plan_windowed_pull(forward, pulled, estimates.down.overhead, window)
        else:
            pull = plan_segments(forward, pulled, estimates.down.overhead + round_trip_s, "pull", self.strategy)
        push = plan_segments(backward, pushed, estimates.up.overhead + round_trip_s, "push", self.strategy)
        return TurnSegments(tuple(pull.segments), tuple(push.segments))

    def layer_times_s(self, costs: DeviceCosts, estimates: DeviceEstimates, samples: int) -> tuple[list[float], ...]:
        """The estimated seconds of each layer: forward, backward, pull and push."""
        forward, backward = estimates.layers.predicted_s(costs.pass_seconds(samples))
        pulled = [size * (estimates.down.seconds_per_byte or 0.0) for size in costs.pull_bytes]
        pushed = [size * (estimates.up.seconds_per_byte or 0.0) for size in costs.push_bytes]
        return [*forward], [*backward], pulled, pushed


class SequentialTransfer(ModelTransfer, frozen=True, kw_only=True, tag="sequential"):
    """The whole model at once: pull, compute, push."""

    strategy: ClassVar[Strategy] = "sequential"
    uses_estimates: ClassVar[bool] = False

    def unused_keys(self) -> Mapping[str, str]:
        return {"window": "where the whole model is one segment"}

    def plan_segments(self, costs: DeviceCosts, estimates: DeviceEstimates, samples: int) -> TurnSegments:
        whole = ((0, costs.layer_count - 1),)
        return TurnSegments(whole, whole)


class LayerByLayerTransfer(ModelTransfer, frozen=True, kw_only=True, tag="layer-by-layer"):
    """One segment per layer (Poseidon)."""

    strategy: ClassVar[Strategy] = "layer-by-layer"


class IbatchTransfer(ModelTransfer, frozen=True, kw_only=True, tag="ibatch"):
    """Greedy: each segment as large as the computation that hides it (iBatch)."""

    strategy: ClassVar[Strategy] = "ibatch"


class MgWfbpTransfer(ModelTransfer, frozen=True, kw_only=True, tag="mg-wfbp"):
    """Merges a layer with the next if it could not be sent before the next is ready (MG-WFBP)."""

    strategy: ClassVar[Strategy] = "mg-wfbp"


class DuplexTransfer(ModelTransfer, frozen=True, kw_only=True, tag="duplex"):
    """Segments return for the next round as soon as they are merged, while others are still pushed."""

    strategy: ClassVar[Strategy] = "optimal"
    drafts_next_round: ClassVar[bool] = True
    split_layer_fraction: ClassVar[float | None] = 0.05

    def plan_segments(self, costs: DeviceCosts, estimates: DeviceEstimates, samples: int) -> TurnSegments:
        overhead_s = max(estimates.down.overhead, estimates.up.overhead)
        timing = TransferTiming(overhead_s, latency=estimates.round_trip / 2)
        worker = WorkerCosts(*self.layer_times_s(costs, estimates, samples))
        plan = estimates.duplex_plan = plan_duplex_turn(worker, timing, estimates.duplex_plan)
        if not plan.overlaps:
            return super().plan_segments(costs, estimates, samples)
        ranges = _layer_ranges(plan.cuts, costs.layer_count)
        order = DuplexSchedule([worker], timing).push_order(plan.cuts)
        return TurnSegments(ranges, tuple(ranges[index] for index in order))


class OptimalTransfer(ModelTransfer, frozen=True, kw_only=True, tag="optimal"):
    """The cuts with the shortest time (DynaComm)."""

    strategy: ClassVar[Strategy] = "optimal"


def _layer_ranges(cuts: tuple[int, ...], layers: int) -> tuple[Range, ...]:
    ends = [*cuts, layers - 1]
    return tuple(zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True))
