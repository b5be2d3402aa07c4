"""A plan, and the model of time by which every plan is judged.

Pull, layers from the input. Segments arrive back to back; a segment's layers run once it is there and the
layers before it are done. P and F are the transfer and forward seconds of all layers up to k:

    link     |Δt p1 p2|Δt p3 p4 p5|Δt p6|             E_s = max(E_{s-1}, s·Δt + P(k_s)) + F(k_s) − F(k_{s-1})
    device             |f1 f2|      |f3 f4 f5|f6|

Push, layers from the output. A segment leaves once its last gradient exists and the link is free. C and G are
the backward and transfer seconds of all layers so far:

    device   |c6|c5 c4 c3|c2 c1|                      X_s = max(X_{s-1}, C(k_s)) + Δt + G(k_s) − G(k_{s-1})
    link        |Δt g6|  |Δt g5 g4 g3|Δt g2 g1|

Run either drawing backwards in time and it becomes the other one, layer for layer. So with the same numbers
the same cuts take exactly as long in both directions, and one solver serves both.

`latency` is for requests that are kept in flight: a segment arrives that much later but does not hold the link
meanwhile, and `overhead` is then only what the link itself loses per segment. In a pull every arrival
s·Δt + P(k_s) moves by the same constant, hence every E_s does; in a push every segment leaves when it did
and the last one lands that much later. Either way the constant adds to every makespan alike, so the
best cuts do not depend on it and the plan stays exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from potluck.planning.segments.segment_costs import (
    Direction,
    check_cuts,
    check_direction,
    check_layer_seconds,
    check_seconds,
)

__all__ = ["SegmentPlan", "makespan_of_cuts", "segment_ranges", "simulate_makespan"]


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """Where a transfer of `layers` layers is cut, and the seconds it takes together with the computation.

    `cuts` are the layer indices after which a segment ends, in layer order, without the last layer (after which
    one always ends): one segment has no cuts, layer by layer has all of 0 .. layers − 2.
    """

    cuts: tuple[int, ...]
    makespan: float
    strategy: str
    direction: Direction
    layers: int

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """First and last layer of each segment, in the order of transfer: a push begins at the output."""
        in_layer_order = segment_ranges(self.cuts, self.layers)
        return in_layer_order if self.direction == "pull" else in_layer_order[::-1]


def segment_ranges(cuts: Sequence[int], layers: int) -> tuple[tuple[int, int], ...]:
    """First and last layer between the cuts, in layer order."""
    if not layers:
        return ()
    return tuple(zip((0, *(cut + 1 for cut in cuts)), (*cuts, layers - 1), strict=True))


def simulate_makespan(
    compute: Iterable[float],
    transfer: Iterable[float],
    overhead: float,
    direction: Direction,
    cuts: Sequence[int],
    latency: float = 0.0,
) -> float:
    """The makespan of given cuts, replayed segment by segment."""
    check_direction(direction)
    check_seconds(overhead=overhead, latency=latency)
    computing, moving = check_layer_seconds(compute, transfer)
    check_cuts(cuts, len(computing))
    return makespan_of_cuts(computing, moving, overhead, direction, cuts, latency)


def makespan_of_cuts(
    compute: Sequence[float],
    transfer: Sequence[float],
    overhead: float,
    direction: Direction,
    cuts: Sequence[int],
    latency: float,
) -> float:
    """`simulate` for numbers that were checked before."""
    segments = [slice(first, last + 1) for first, last in segment_ranges(cuts, len(compute))]
    if not segments:
        return 0.0
    works = [(sum(compute[segment]), overhead + sum(transfer[segment])) for segment in segments]
    if direction == "pull":
        return _flow_shop_makespan((moving, computing) for computing, moving in works) + latency
    return _flow_shop_makespan(reversed(works)) + latency


def _flow_shop_makespan(jobs: Iterable[tuple[float, float]]) -> float:
    """Each job passes the first machine, then the second, in the given order and without a needless wait."""
    first = second = 0.0
    for on_first, on_second in jobs:
        first += on_first
        second = max(second, first) + on_second
    return second
