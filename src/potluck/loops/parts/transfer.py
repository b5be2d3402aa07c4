"""How are pull and push cut into segments? Planned anew for every turn from what the device has seen of itself."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, ClassVar, NamedTuple

import msgspec

from potluck.loops.costs import Costs
from potluck.loops.estimates import Estimates
from potluck.planning.segments import Strategy, Worker, duplex, plan
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
    finest: ClassVar[float | None] = None  # the share of the model above which a layer may be cut inside, if any
    learns: ClassVar[bool] = True  # whether it goes by what the device has seen

    window: Annotated[int, msgspec.Meta(ge=1)] = 2

    def cuts(self, costs: Costs, seen: Estimates, samples: int) -> Cuts:
        each_waits = seen.round_trip if self.window == 1 else 0.0
        forward, backward, pulled, pushed = self.seconds(costs, seen, samples)
        pull = plan(forward, pulled, seen.down.overhead + each_waits, "pull", self.strategy)
        push = plan(backward, pushed, seen.up.overhead + each_waits, "push", self.strategy)
        return Cuts(tuple(pull.segments), tuple(push.segments))

    def seconds(self, costs: Costs, seen: Estimates, samples: int) -> tuple[list[float], ...]:
        """Of each layer: forward, backward, pull and push, as the device has seen them."""
        layers = range(costs.layers)
        forward = [seen.slowness * costs.forward(layer, samples) for layer in layers]
        backward = [seen.slowness * costs.backward(layer, samples) for layer in layers]
        pulled = [size * (seen.down.seconds_per_byte or 0.0) for size in costs.pull_bytes]
        pushed = [size * (seen.up.seconds_per_byte or 0.0) for size in costs.push_bytes]
        return forward, backward, pulled, pushed


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
    """Every segment comes back for the next round as soon as all devices' updates for it are merged, while others
    still push. Cut for that, by the forecast of a steady round; where it does not pay, as the optimal plan cuts."""

    strategy: ClassVar[Strategy] = "optimal"
    ahead: ClassVar[bool] = True
    finest: ClassVar[float | None] = 0.05

    def cuts(self, costs: Costs, seen: Estimates, samples: int) -> Cuts:
        times = [
            tuple(float(f"{second:.2g}") for second in seconds)  # so that a little noise does not change the plan
            for seconds in self.seconds(costs, seen, samples)
        ]
        found = _duplex_cuts(*times, float(f"{seen.down.overhead:.2g}"), float(f"{seen.round_trip / 2:.2g}"))
        if found is None:
            return super().cuts(costs, seen, samples)
        ranges = _ranges(found, costs.layers)
        return Cuts(ranges, tuple(reversed(ranges)))


class Optimal(Transfer, frozen=True, kw_only=True, tag="optimal"):
    """The cuts that end soonest (DynaComm)."""

    strategy: ClassVar[Strategy] = "optimal"


@lru_cache(maxsize=256)
def _duplex_cuts(
    forward: tuple[float, ...],
    backward: tuple[float, ...],
    pull: tuple[float, ...],
    push: tuple[float, ...],
    overhead: float,
    latency: float,
) -> tuple[int, ...] | None:
    """Where a group of devices like this one cuts both ways; None where running ahead does not pay."""
    found = duplex([Worker(forward, backward, pull, push)], overhead, latency, climbs=6, trials=60)
    return found.cuts[0].push if found.overlaps else None


def _ranges(cuts: tuple[int, ...], layers: int) -> tuple[Range, ...]:
    ends = [*cuts, layers - 1]
    return tuple(zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True))
