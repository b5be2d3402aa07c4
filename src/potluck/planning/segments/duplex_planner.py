"""Plans the cuts of duplex transfers for one turn after another, in at most a millisecond each.

A turn continues the search where the previous one stopped, so the plan gets better from turn to turn at a small cost
each. A plan that no change improves is kept until the costs have moved by more than a twentieth.
"""

from __future__ import annotations

from dataclasses import dataclass

from potluck.planning.segments.cut_search import CutSearch, starting_points
from potluck.planning.segments.duplex_schedule import DuplexSchedule, TransferTiming, WorkerCosts
from potluck.planning.segments.optimal_segments import optimal_cuts

__all__ = ["DuplexPlan", "plan_duplex_turn"]

_TURN_EFFORT = 400  # see CutSearch
_MIN_CLIMB_EFFORT = 100
_CLIMBS = 4  # starting points that are improved, one after the other
_MOVED = 0.05  # change of a cost that calls for another plan
_NEGLIGIBLE = 0.1  # of an iteration: costs below change by as much as if they had this size


@dataclass(slots=True)
class DuplexPlan:
    """The best cuts so far, what they were planned for, and where the search goes on."""

    cuts: tuple[int, ...]
    iteration_s: float
    barrier_s: float  # of the best plan with a barrier
    totals_s: tuple[float, ...]  # forward, backward, pull, push, overhead, latency
    climbing: tuple[int, ...] = ()  # cuts that are being improved
    tried: int | None = 0  # changes of them that are known not to help; None: all
    starts: tuple[tuple[int, ...], ...] = ()  # cuts to improve after these

    @property
    def overlaps(self) -> bool:
        """Whether the plan is faster than the best one with a barrier."""
        return self.iteration_s < self.barrier_s

    @property
    def is_settled(self) -> bool:
        return self.tried is None and not self.starts

    def still_fits(self, totals_s: tuple[float, ...], layers: int) -> bool:
        """Whether the costs are about those that the plan was made for."""
        if any(cuts and cuts[-1] >= layers - 1 for cuts in (self.cuts, self.climbing, *self.starts)):
            return False  # it was made for fewer layers
        tolerable = [_MOVED * max(old, _NEGLIGIBLE * self.iteration_s) for old in self.totals_s]
        return all(abs(new - old) <= most for new, old, most in zip(totals_s, self.totals_s, tolerable, strict=True))


def plan_duplex_turn(worker: WorkerCosts, timing: TransferTiming, previous: DuplexPlan | None = None) -> DuplexPlan:
    """The plan for the next turn of a group of devices like this one."""
    totals_s = (*(sum(getattr(worker, name)) for name in WorkerCosts.__slots__), timing.overhead, timing.latency)
    search = CutSearch(DuplexSchedule([worker], timing))
    if previous is None or not previous.still_fits(totals_s, len(worker.forward)):
        previous = _start_plan(search, worker, timing, totals_s)
    elif previous.is_settled:
        return previous
    return _improve_plan(search, previous)


def _start_plan(
    search: CutSearch, worker: WorkerCosts, timing: TransferTiming, totals_s: tuple[float, ...]
) -> DuplexPlan:
    pull_cuts, pull_s = optimal_cuts(worker.forward, worker.pull, timing.overhead)
    push_cuts, push_s = optimal_cuts(worker.backward, worker.push, timing.overhead)
    ranked = search.rank_starts(starting_points([worker], (pull_cuts, push_cuts)))
    best, *others = ranked[:_CLIMBS]
    barrier_s = pull_s + push_s + 2 * timing.latency + timing.merge
    starts = tuple(start.cuts for start in others)
    return DuplexPlan(best.cuts, best.seconds, barrier_s, totals_s, best.cuts, 0, starts)


def _improve_plan(search: CutSearch, plan: DuplexPlan) -> DuplexPlan:
    """Spend a turn's effort on better cuts."""
    until_effort = max(_TURN_EFFORT, search.effort + _MIN_CLIMB_EFFORT)
    best = search.evaluate_cuts(plan.cuts)
    climbing, tried, starts = search.evaluate_cuts(plan.climbing), plan.tried, list(plan.starts)
    while search.effort < until_effort:
        if tried is None and not starts:
            break
        if tried is None:
            climbing, tried = search.evaluate_cuts(starts.pop(0)), 0
        climbing, tried = search.climb_from(climbing, until_effort, tried)
        best = min(best, climbing)
    return DuplexPlan(best.cuts, best.seconds, plan.barrier_s, plan.totals_s, climbing.cuts, tried, tuple(starts))
