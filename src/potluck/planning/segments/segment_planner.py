"""Plans a transfer with one of the known strategies: the optimal cuts, or one of the published rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Literal, get_args

from potluck.errors import UserError
from potluck.planning.segments.optimal_segments import optimal_cuts
from potluck.planning.segments.segment_costs import Direction, check_direction, check_layer_seconds, check_seconds
from potluck.planning.segments.segment_plan import RequestWindow, SegmentPlan, makespan_of_cuts, windowed_pull_s

__all__ = [
    "STRATEGIES",
    "Strategy",
    "ibatch_cuts",
    "layer_by_layer_cuts",
    "mg_wfbp_cuts",
    "plan_segments",
    "plan_windowed_pull",
    "sequential_cuts",
]

Strategy = Literal["sequential", "layer-by-layer", "ibatch", "mg-wfbp", "optimal"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
_Rule = Callable[[Sequence[float], Sequence[float], float, Direction], list[int]]


def sequential_cuts(
    compute: Sequence[float], transfer: Sequence[float], overhead: float, direction: Direction
) -> list[int]:
    """One segment: nothing overlaps."""
    return []


def layer_by_layer_cuts(
    compute: Sequence[float], transfer: Sequence[float], overhead: float, direction: Direction
) -> list[int]:
    """One segment per layer: maximal overlap and maximal overhead (Poseidon, in both directions)."""
    return list(range(len(compute) - 1))


def ibatch_cuts(
    compute: Sequence[float], transfer: Sequence[float], overhead: float, direction: Direction
) -> list[int]:
    """iBatch (AAAI 2019): each segment holds the layers that fit beside the previous one, in lock step.

    The first segment is a single layer. While a segment is on the second machine (a pull computes it, a push
    sends it), the next one takes the layers that the first machine can finish in that time, at least one.
    """
    if direction == "pull":
        return [end - 1 for end in _lock_step_ends(transfer, compute, overhead, 0.0)]
    ends = _lock_step_ends(compute[::-1], transfer[::-1], 0.0, overhead)
    return sorted(len(compute) - end - 1 for end in ends)


def _lock_step_ends(
    first: Sequence[float], second: Sequence[float], first_fixed: float, second_fixed: float
) -> Iterator[int]:
    """Number of layers covered after each segment but the last."""
    begin, end = 0, min(1, len(first))
    while end < len(first):
        yield end
        window = second_fixed + sum(second[begin:end])
        begin, end = end, end + 1
        filled = first_fixed + first[begin]
        while end < len(first) and filled + first[end] <= window:
            filled += first[end]
            end += 1


def mg_wfbp_cuts(
    compute: Sequence[float], transfer: Sequence[float], overhead: float, direction: Direction
) -> list[int]:
    """MG-WFBP (INFOCOM 2019): a gradient is merged with the next if that is ready before this one's overhead is over.

    The rule is defined for a push; a pull uses the cuts of its time-reversed push.
    """
    ready = list(accumulate(reversed(compute)))
    cuts = []
    link_free = pending = 0.0
    for index, moving in enumerate(reversed(transfer)):
        pending += moving
        start = max(link_free, ready[index])
        if index + 1 < len(ready) and ready[index + 1] >= start + overhead:
            cuts.append(len(ready) - index - 2)
            link_free, pending = start + overhead + pending, 0.0
    return cuts[::-1]


_RULES: dict[str, _Rule] = {
    "sequential": sequential_cuts,
    "layer-by-layer": layer_by_layer_cuts,
    "ibatch": ibatch_cuts,
    "mg-wfbp": mg_wfbp_cuts,
}


def plan_segments(
    compute: Iterable[float],
    transfer: Iterable[float],
    overhead: float,
    direction: Direction = "pull",
    strategy: Strategy = "optimal",
    latency: float = 0.0,
) -> SegmentPlan:
    """Cut a transfer so that it overlaps with the computation; the plan says how long both take.

    `compute` and `transfer` are seconds per layer from input to output, in both directions: forward and pull,
    or backward and push. Each segment occupies the link for `overhead` seconds on top of its layers; `latency` is added
    once, for requests that are kept in flight. The timing model is described in `segment_plan`.
    """
    check_direction(direction)
    check_seconds(overhead=overhead, latency=latency)
    computing, moving = check_layer_seconds(compute, transfer)
    if strategy == "optimal":
        cuts, makespan = optimal_cuts(computing, moving, overhead)
        return SegmentPlan(cuts, makespan + latency if moving else 0.0, strategy, direction, len(moving))
    if strategy not in _RULES:
        raise UserError(f"unknown strategy {strategy!r}; choose from {', '.join(STRATEGIES)}")
    cuts = tuple(_RULES[strategy](computing, moving, overhead, direction))
    makespan = makespan_of_cuts(computing, moving, overhead, direction, cuts, latency)
    return SegmentPlan(cuts, makespan, strategy, direction, len(moving))


def plan_windowed_pull(
    compute: Sequence[float], transfer: Sequence[float], overhead: float, window: RequestWindow
) -> SegmentPlan:
    """The best pull with a few requests in flight, which short segments leave waiting for their round trips.

    The optimal cuts for a segment that costs its overhead alone, and for one that also costs a part of the round trip
    or all of it, are compared by what they take with that window.
    """
    waits = [wait * window.round_trip_s for wait in (0.0, 1 / window.requests, 1.0)]
    plans = [(), *(optimal_cuts(compute, transfer, overhead + wait)[0] for wait in waits)]
    seconds, cuts = min((windowed_pull_s(compute, transfer, overhead, each, window), each) for each in plans)
    return SegmentPlan(cuts, seconds + window.round_trip_s, "optimal", "pull", len(compute))
