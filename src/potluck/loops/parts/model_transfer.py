"""How are pull and push cut into segments? Planned anew for every turn from what the device has seen of itself."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, ClassVar, NamedTuple

import msgspec

from potluck.loops.device_costs import DeviceCosts
from potluck.loops.device_estimates import DeviceEstimates
from potluck.planning.segments import Strategy, WorkerCosts, forecast_duplex, plan_segments
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
    """A turn's segments as first and last layer, in the order of the transfer."""

    pull: tuple[Range, ...]
    push: tuple[Range, ...]


class ModelTransfer(Part, frozen=True, kw_only=True):
    """Plans how a turn's transfers are cut."""

    strategy: ClassVar[Strategy]
    drafts_next_round: ClassVar[bool] = False  # whether the next round begins before this one is over
    split_layer_fraction: ClassVar[float | None] = (
        None  # the share of the model above which a layer may be cut inside, if any
    )
    uses_estimates: ClassVar[bool] = True  # whether it goes by what the device has seen

    window: Annotated[
        int, msgspec.Meta(ge=1), doc("Segment requests in flight; with 1 every segment pays the round trip.")
    ] = 2

    def plan_segments(self, costs: DeviceCosts, seen: DeviceEstimates, samples: int) -> TurnSegments:
        each_waits = seen.round_trip if self.window == 1 else 0.0
        forward, backward, pulled, pushed = self.layer_times_s(costs, seen, samples)
        pull = plan_segments(forward, pulled, seen.down.overhead + each_waits, "pull", self.strategy)
        push = plan_segments(backward, pushed, seen.up.overhead + each_waits, "push", self.strategy)
        return TurnSegments(tuple(pull.segments), tuple(push.segments))

    def layer_times_s(self, costs: DeviceCosts, seen: DeviceEstimates, samples: int) -> tuple[list[float], ...]:
        """Of each layer: forward, backward, pull and push, as the device has seen them."""
        layers = range(costs.layer_count)
        forward = [seen.slowness * costs.forward_s(layer, samples) for layer in layers]
        backward = [seen.slowness * costs.backward_s(layer, samples) for layer in layers]
        pulled = [size * (seen.down.seconds_per_byte or 0.0) for size in costs.pull_bytes]
        pushed = [size * (seen.up.seconds_per_byte or 0.0) for size in costs.push_bytes]
        return forward, backward, pulled, pushed


class SequentialTransfer(ModelTransfer, frozen=True, kw_only=True, tag="sequential"):
    """The whole model at once: pull, then compute, then push."""

    strategy: ClassVar[Strategy] = "sequential"
    uses_estimates: ClassVar[bool] = False

    def plan_segments(self, costs: DeviceCosts, seen: DeviceEstimates, samples: int) -> TurnSegments:
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

    def plan_segments(self, costs: DeviceCosts, seen: DeviceEstimates, samples: int) -> TurnSegments:
        times = [
            tuple(float(f"{second:.2g}") for second in seconds)  # so that a little noise does not change the plan
            for seconds in self.layer_times_s(costs, seen, samples)
        ]
        found = _plan_duplex_cuts(*times, float(f"{seen.down.overhead:.2g}"), float(f"{seen.round_trip / 2:.2g}"))
        if found is None:
            return super().plan_segments(costs, seen, samples)
        ranges = _layer_ranges(found, costs.layer_count)
        return TurnSegments(ranges, tuple(reversed(ranges)))


class OptimalTransfer(ModelTransfer, frozen=True, kw_only=True, tag="optimal"):
    """The cuts with the shortest time (DynaComm)."""

    strategy: ClassVar[Strategy] = "optimal"


@lru_cache(maxsize=256)
def _plan_duplex_cuts(
    forward: tuple[float, ...],
    backward: tuple[float, ...],
    pull: tuple[float, ...],
    push: tuple[float, ...],
    overhead: float,
    latency: float,
) -> tuple[int, ...] | None:
    """Where a group of devices like this one cuts both ways; None where running ahead does not pay."""
    found = forecast_duplex([WorkerCosts(forward, backward, pull, push)], overhead, latency, climbs=6, trials=60)
    return found.cuts[0].push if found.overlaps else None


def _layer_ranges(cuts: tuple[int, ...], layers: int) -> tuple[Range, ...]:
    ends = [*cuts, layers - 1]
    return tuple(zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True))
