"""Plans a transfer with one of the known strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

from potluck.errors import UserError
from potluck.planning.segments.optimal_segments import optimal_cuts
from potluck.planning.segments.segment_baselines import ibatch_cuts, layer_by_layer_cuts, mg_wfbp_cuts, sequential_cuts
from potluck.planning.segments.segment_costs import Direction, check_direction, check_layer_seconds, check_seconds
from potluck.planning.segments.segment_plan import SegmentPlan, makespan_of_cuts

__all__ = ["STRATEGIES", "Strategy", "plan_segments"]

Strategy = Literal["sequential", "layer-by-layer", "ibatch", "mg-wfbp", "optimal"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

_Rule = Callable[[Sequence[float], Sequence[float], float, Direction], list[int]]
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
