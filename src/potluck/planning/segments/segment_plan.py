"""Segment plans, and the timing model that every plan is evaluated with.

Pull, layers from the input. Segments arrive back to back; a segment's layers run once it has arrived and the
layers before it are done. P and F are the transfer and forward seconds of all layers up to k:

    link     |Δt p1 p2|Δt p3 p4 p5|Δt p6|             E_s = max(E_{s-1}, s·Δt + P(k_s)) + F(k_s) − F(k_{s-1})
    device             |f1 f2|      |f3 f4 f5|f6|

Push, layers from the output. A segment leaves once its last gradient exists and the link is free. C and G are
the backward and transfer seconds of all layers so far:

    device   |c6|c5 c4 c3|c2 c1|                      X_s = max(X_{s-1}, C(k_s)) + Δt + G(k_s) − G(k_{s-1})
    link        |Δt g6|  |Δt g5 g4 g3|Δt g2 g1|

Run either drawing backwards in time and it becomes the other one, layer for layer. So with the same
times the same cuts take exactly as long in both directions, and one solver serves both.

`latency` is for requests that are kept in flight: a segment arrives that much later without occupying the link,
and `overhead` is then only what the link itself loses per segment. In a pull every arrival s·Δt + P(k_s) shifts by
the same constant, hence every E_s does; in a push the departures stay and the last arrival shifts. Either way every
makespan grows by the same constant, so the optimal cuts do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from potluck.planning.segments.segment_costs import Direction

__all__ = ["RequestWindow", "SegmentPlan", "makespan_of_cuts", "segment_ranges", "windowed_pull_s"]


class RequestWindow(NamedTuple):
    """How many requests are in flight, and how long one takes besides the transfer."""

    requests: int
    round_trip_s: float


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The cuts of a transfer of `layers` layers, and the seconds that it takes together with the computation.

    `cuts` are the layer indices after which a segment ends, in layer order, without the last layer (where one
    always ends): one segment has no cuts, layer by layer has all of 0 .. layers − 2.
    """

    cuts: tuple[int, ...]
    makespan: float
    strategy: str
    direction: Direction
    layers: int

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """First and last layer of each segment in the order of transfer; a push starts at the output."""
        in_layer_order = segment_ranges(self.cuts, self.layers)
        return in_layer_order if self.direction == "pull" else in_layer_order[::-1]


def segment_ranges(cuts: Sequence[int], layers: int) -> tuple[tuple[int, int], ...]:
    """First and last layer between the cuts, in layer order."""
    if not layers:
        return ()
    return tuple(zip((0, *(cut + 1 for cut in cuts)), (*cuts, layers - 1), strict=True))


def makespan_of_cuts(
    compute: Sequence[float],
    transfer: Sequence[float],
    overhead: float,
    direction: Direction,
    cuts: Sequence[int],
    latency: float = 0.0,
) -> float:
    """Seconds that the transfer and its computation take with these cuts; the arguments must be valid."""
    segments = [slice(first, last + 1) for first, last in segment_ranges(cuts, len(compute))]
    if not segments:
        return 0.0
    works = [(sum(compute[segment]), overhead + sum(transfer[segment])) for segment in segments]
    if direction == "pull":
        return _flow_shop_makespan((moving, computing) for computing, moving in works) + latency
    return _flow_shop_makespan(reversed(works)) + latency


def windowed_pull_s(
    compute: Sequence[float], transfer: Sequence[float], overhead: float, cuts: Sequence[int], window: RequestWindow
) -> float:
    """Seconds of a pull and its forward pass if only `window.requests` requests are in flight.

    A request leaves when the segment so many before it has arrived, and its answer begins a round trip later. The
    first round trip, which every plan pays, is left out.
    """
    arrivals: list[float] = []
    computed = 0.0
    for index, (first, last) in enumerate(segment_ranges(cuts, len(compute))):
        begins = arrivals[-1] if arrivals else 0.0
        if index >= window.requests:
            begins = max(begins, arrivals[index - window.requests] + window.round_trip_s)
        arrivals.append(begins + overhead + sum(transfer[first : last + 1]))
        computed = max(computed, arrivals[-1]) + sum(compute[first : last + 1])
    return computed


def _flow_shop_makespan(jobs: Iterable[tuple[float, float]]) -> float:
    """Makespan of a two-machine flow shop: each job runs on the first machine, then on the second, in this order."""
    first = second = 0.0
    for on_first, on_second in jobs:
        first += on_first
        second = max(second, first) + on_second
    return second
