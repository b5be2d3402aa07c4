"""The one call that plans a transfer, and the strategies it knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

from potluck.errors import UserError
from potluck.planning.segments.baselines import ibatch, layer_by_layer, mg_wfbp, sequential
from potluck.planning.segments.costs import Direction, check_direction, check_seconds, paired
from potluck.planning.segments.optimal import optimal
from potluck.planning.segments.schedule import Plan, replay

__all__ = ["STRATEGIES", "Strategy", "plan"]

Strategy = Literal["sequential", "layer-by-layer", "ibatch", "mg-wfbp", "optimal"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

_Rule = Callable[[Sequence[float], Sequence[float], float, Direction], list[int]]
_RULES: dict[str, _Rule] = {
    "sequential": sequential,
    "layer-by-layer": layer_by_layer,
    "ibatch": ibatch,
    "mg-wfbp": mg_wfbp,
}


def plan(
    compute: Iterable[float],
    transfer: Iterable[float],
    overhead: float,
    direction: Direction = "pull",
    strategy: Strategy = "optimal",
    latency: float = 0.0,
) -> Plan:
    """Where to cut a transfer so that it hides behind the computation, and how long both then take.

    `compute` and `transfer` are seconds per layer from input to output, for both directions: forward and pull, or
    backward and push. Each segment holds the link for `overhead` seconds on top of its layers; `latency` is added
    once, for requests that are kept in flight. Plans are judged by the model in `schedule`.
    """
    check_direction(direction)
    check_seconds(overhead=overhead, latency=latency)
    computing, moving = paired(compute, transfer)
    if strategy == "optimal":
        cuts, makespan = optimal(computing, moving, overhead)
        return Plan(cuts, makespan + latency if moving else 0.0, strategy, direction, len(moving))
    if strategy not in _RULES:
        raise UserError(f"strategy {strategy!r} is not known; choose from {', '.join(STRATEGIES)}")
    cuts = tuple(_RULES[strategy](computing, moving, overhead, direction))
    makespan = replay(computing, moving, overhead, direction, cuts, latency)
    return Plan(cuts, makespan, strategy, direction, len(moving))
