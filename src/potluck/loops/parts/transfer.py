"""How are pull and push cut into segments? Planned anew for every turn from what the device has seen of itself."""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

import msgspec

from potluck.loops.costs import Costs
from potluck.loops.estimates import Estimates
from potluck.planning.segments import Strategy, plan
from potluck.settings import Part

__all__ = ["Cuts", "Duplex", "Ibatch", "LayerByLayer", "MgWfbp", "Optimal", "Sequential", "Transfer"]

Range = tuple[int, int]


class Cuts(NamedTuple):
    """A turn's segments as first and last layer, in the order of the transfer."""

    pull: tuple[Range, ...]
    push: tuple[Range, ...]


class Transfer(Part, frozen=True, kw_only=True):
    """Plans a turn's transfers; `window` of them may be in flight at once (with one, each pays the round trip)."""

    strategy: ClassVar[Strategy]
    ahead: ClassVar[bool] = False  # whether the next round begins before this one is over
    learns: ClassVar[bool] = True  # whether it goes by what the device has seen

    window: Annotated[int, msgspec.Meta(ge=1)] = 2

    def cuts(self, costs: Costs, seen: Estimates, samples: int) -> Cuts:
        layers = range(costs.layers)
        each_waits = seen.round_trip if self.window == 1 else 0.0
        forward = [seen.slowness * costs.forward(layer, samples) for layer in layers]
        backward = [seen.slowness * costs.backward(layer, samples) for layer in layers]
        down, up = seen.down, seen.up
        pulled = [size * (down.seconds_per_byte or 0.0) for size in costs.pull_bytes]
        pushed = [size * (up.seconds_per_byte or 0.0) for size in costs.push_bytes]
        pull = plan(forward, pulled, down.overhead + each_waits, "pull", self.strategy)
        push = plan(backward, pushed, up.overhead + each_waits, "push", self.strategy)
        return Cuts(tuple(pull.segments), tuple(push.segments))


class Sequential(Transfer, frozen=True, kw_only=True, tag="sequential"):
    """The whole model at once: pull, then compute, then push."""

    strategy: ClassVar[Strategy] = "sequential"
    learns: ClassVar[bool] = False

    def cuts(self, costs: Costs, seen: Estimates, samples: int) -> Cuts:
        whole = ((0, costs.layers - 1),)
        return Cuts(whole, whole)


class LayerByLayer(Transfer, frozen=True, kw_only=True, tag="layer-by-layer"):
    """A segment for every layer (Poseidon's wait-free propagation, both ways)."""

    strategy: ClassVar[Strategy] = "layer-by-layer"


class Ibatch(Transfer, frozen=True, kw_only=True, tag="ibatch"):
    """Greedy: each segment as large as the computation it hides behind (iBatch)."""

    strategy: ClassVar[Strategy] = "ibatch"


class MgWfbp(Transfer, frozen=True, kw_only=True, tag="mg-wfbp"):
    """Merge a layer with the next where it could not have been sent before the next is ready (MG-WFBP)."""

    strategy: ClassVar[Strategy] = "mg-wfbp"


class Duplex(Transfer, frozen=True, kw_only=True, tag="duplex"):
    """Optimal cuts, and every segment comes back for the next round as soon as all devices' updates for it are merged,
    while others still push."""

    strategy: ClassVar[Strategy] = "optimal"
    ahead: ClassVar[bool] = True


class Optimal(Transfer, frozen=True, kw_only=True, tag="optimal"):
    """The cuts that end soonest (DynaComm)."""

    strategy: ClassVar[Strategy] = "optimal"
