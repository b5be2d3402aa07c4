"""Optimal cuts for devices in a given order, in O(N·L·log L); O(N³·L + N²·L·log L) if devices may be left out.

Let tail(begin) be the minimal period of the layers from `begin` on, with this device as their first stage:

    tail(begin) = min over end > begin of max{ run(begin, end), beyond(end) }
    beyond(end) = max{ the cut before `end`, the next device's tail(end) }

1. For a fixed `begin`, run decreases as `end` comes nearer. A nearer end whose `beyond` is no larger therefore
   dominates a farther one, for this and every smaller `begin`: the farther one can be discarded.
2. The remaining ends, kept on a stack while `begin` decreases, have `beyond` rising strictly from the farthest end
   (bottom) to the nearest (top) while `run` falls: the maximum of both is minimal where they cross (bisection).
3. Memory only excludes ends that are too far, at the bottom of the stack, again by bisection. A discarded end is
   farther than the one that dominates it, so it never fits where that one does not.

The argument does not need tails to be monotone, which they are not where cuts are forbidden.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from potluck.planning.partition.stage_costs import CutsAndOrder, StageCosts

__all__ = ["solve_fixed_order"]


@dataclass(frozen=True)
class TailSolution:
    """The optimum from each layer on, if this device runs the first stage from there."""

    device: int
    period: Sequence[float]
    end: Sequence[int]  # where the device's run ends
    successor: Sequence[TailSolution | None]  # the solution that continues there


def solve_fixed_order(
    costs: StageCosts, order: Sequence[int], *, subset: bool, pinned: int | None
) -> CutsAndOrder | None:
    """Cuts and devices of minimal period, with the fewest devices among equals; None if nothing is feasible."""
    best: TailSolution | None = None
    tails: list[TailSolution | None] = [None] * len(order)
    for versions in range(1, min(len(order), costs.layers) + 1):
        tails = _add_stage(costs, order, tails, versions, subset)
        for tail in _first_stages(tails, pinned, every=subset or versions == len(order)):
            if tail.period[0] < (best.period[0] if best else math.inf):
                best = tail
    return _trace_layout(best, costs.layers) if best else None


def _add_stage(
    costs: StageCosts, order: Sequence[int], tails: list[TailSolution | None], versions: int, subset: bool
) -> list[TailSolution | None]:
    """The tails of `versions` stages, from those with one stage less."""
    longer: list[TailSolution | None] = [None] * len(order)
    last = len(order) - versions
    for position in range(last + 1) if subset else (last,):
        followers = tails[position + 1 :] if subset else tails[position + 1 : position + 2]
        longer[position] = _solve_tail(costs, order[position], versions, [tail for tail in followers if tail])
    return longer


def _first_stages(tails: list[TailSolution | None], pinned: int | None, every: bool) -> list[TailSolution]:
    return [tail for tail in tails if every and tail and pinned in (None, tail.device)]


def _solve_tail(costs: StageCosts, device: int, versions: int, followers: list[TailSolution]) -> TailSolution:
    beyond = costs.beyond_last()
    successor: list[TailSolution | None] = [None] * len(beyond)
    if versions > 1:
        beyond[-1] = math.inf
        for at in range(1, costs.layers):
            beyond[at], successor[at] = _best_successor(costs, device, followers, at)
    period, end = _best_runs(costs, device, versions, beyond)
    return TailSolution(device, period, end, successor)


def _best_successor(
    costs: StageCosts, device: int, followers: list[TailSolution], at: int
) -> tuple[float, TailSolution | None]:
    """The cheapest continuation after a cut before layer `at`."""
    best, chosen = math.inf, None
    for tail in followers:
        price = max(costs.cut(device, tail.device, at), tail.period[at])
        if price < best:
            best, chosen = price, tail
    return best, chosen


def _best_runs(costs: StageCosts, device: int, versions: int, beyond: list[float]) -> tuple[list[float], list[int]]:
    period = [math.inf] * len(beyond)
    ends = [costs.layers] * len(beyond)
    stack: list[int] = []
    for begin in reversed(range(costs.layers)):
        _push_end(stack, begin + 1, beyond)
        end = _best_end(stack, costs, device, versions, begin, beyond)
        if end is not None:
            ends[begin] = end
            period[begin] = max(beyond[end], costs.run_cost(device, versions, begin, end))
    return period, ends


def _push_end(stack: list[int], end: int, beyond: list[float]) -> None:
    while stack and beyond[stack[-1]] >= beyond[end]:
        stack.pop()
    if beyond[end] < math.inf:
        stack.append(end)


def _best_end(
    stack: list[int], costs: StageCosts, device: int, versions: int, begin: int, beyond: list[float]
) -> int | None:
    """The end on the stack that minimises the maximum of run and beyond."""

    def run_cost(end: int) -> float:
        return costs.run_cost(device, versions, begin, end)

    fitting = bisect_left(stack, True, key=lambda end: costs.fits_memory(device, versions, begin, end))
    crossed = bisect_left(stack, True, lo=fitting, key=lambda end: beyond[end] >= run_cost(end))
    either_side = stack[max(fitting, crossed - 1) : crossed + 1]
    return min(either_side, key=lambda end: max(beyond[end], run_cost(end)), default=None)


def _trace_layout(tail: TailSolution, layers: int) -> CutsAndOrder:
    cuts, order = [], [tail.device]
    end = tail.end[0]
    while end < layers:
        follower = tail.successor[end]
        assert follower is not None
        tail = follower
        cuts.append(end)
        order.append(tail.device)
        end = tail.end[end]
    return tuple(cuts), tuple(order)
