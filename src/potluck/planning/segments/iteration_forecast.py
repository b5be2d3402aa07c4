"""Forecasts the seconds per iteration of all workers: with a barrier between push and pull, and without (duplex)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from potluck.errors import UserError
from potluck.planning.segments.cut_search import CutSearch, starting_points
from potluck.planning.segments.duplex_schedule import DuplexSchedule, TransferTiming, WorkerCosts, WorkerCuts
from potluck.planning.segments.segment_costs import check_seconds, layer_seconds
from potluck.planning.segments.segment_planner import Strategy, plan_segments

__all__ = ["DuplexForecast", "barrier_iteration_s", "forecast_duplex", "max_min_rates", "share_server_link"]

_CLIMB_EFFORT = 4_000  # from one starting point, see CutSearch


@dataclass(frozen=True, slots=True)
class DuplexForecast:
    """`iteration` seconds with each worker's cuts, compared with the `barrier` seconds of the optimal plan.

    Where duplex does not pay, `overlaps` is False, the cuts are the optimal ones and both times are equal.
    """

    iteration: float
    barrier: float
    cuts: tuple[WorkerCuts, ...]
    overlaps: bool

    @property
    def gain(self) -> float:
        """The fraction of the iteration time that duplex saves."""
        return 1.0 - self.iteration / self.barrier if self.barrier else 0.0


def barrier_iteration_s(
    workers: Sequence[WorkerCosts],
    overhead: float,
    strategy: Strategy = "optimal",
    latency: float = 0.0,
    merge: float = 0.0,
    server: float | None = None,
) -> float:
    """With a barrier: every worker pulls and runs forward, then backward and pushes; the slowest decides; one merge."""
    checked = _check_workers(workers, server)
    check_seconds(merge=merge)
    return _slowest_worker_s([_plan_worker(worker, overhead, strategy, latency) for worker in checked]) + merge


def forecast_duplex(
    workers: Sequence[WorkerCosts],
    overhead: float,
    latency: float = 0.0,
    merge: float = 0.0,
    server: float | None = None,
    climbs: int = 8,
) -> DuplexForecast:
    """Without a barrier: good cuts for the duplex policy, and the steady-state seconds per iteration.

    Workers may differ. `server`, if given, is how long the server's own link takes to carry the whole model in one
    direction; it is divided fairly. The search improves the `climbs` best starting points.
    """
    checked = _check_workers(workers, server)
    check_seconds(overhead=overhead, latency=latency, merge=merge)
    planned = [_plan_worker(worker, overhead, "optimal", latency) for worker in checked]
    barrier = _slowest_worker_s(planned) + merge
    starts = starting_points(checked, (cuts for each, _ in planned for cuts in (each.pull, each.push)))
    search = CutSearch(DuplexSchedule(checked, TransferTiming(overhead, latency, merge)))
    ranked = search.rank_starts(starts)
    best = min(search.climb_from(start, search.effort + _CLIMB_EFFORT)[0] for start in ranked[:climbs])
    if best.seconds < barrier:
        return DuplexForecast(best.seconds, barrier, (WorkerCuts(best.cuts, best.cuts),) * len(checked), True)
    return DuplexForecast(barrier, barrier, tuple(each for each, _ in planned), False)


def _plan_worker(worker: WorkerCosts, overhead: float, strategy: Strategy, latency: float) -> tuple[WorkerCuts, float]:
    pull = plan_segments(worker.forward, worker.pull, overhead, "pull", strategy, latency)
    push = plan_segments(worker.backward, worker.push, overhead, "push", strategy, latency)
    return WorkerCuts(pull.cuts, push.cuts), pull.makespan + push.makespan


def _slowest_worker_s(planned: Sequence[tuple[WorkerCuts, float]]) -> float:
    return max(seconds for _, seconds in planned)


def _check_workers(workers: Sequence[WorkerCosts], server: float | None) -> list[WorkerCosts]:
    if not workers:
        raise UserError("no workers to forecast; give at least one")
    checked = [
        WorkerCosts(*(layer_seconds(f"workers[{i}].{name}", getattr(worker, name)) for name in WorkerCosts.__slots__))
        for i, worker in enumerate(workers)
    ]
    lengths = sorted({len(getattr(worker, name)) for worker in checked for name in WorkerCosts.__slots__})
    if len(lengths) != 1 or lengths == [0]:
        raise UserError(f"workers have {lengths} layers; give all of them the same number, at least one")
    if server is None:
        return checked
    check_seconds(server=server)
    return share_server_link(checked, server)


def share_server_link(workers: Sequence[WorkerCosts], server: float) -> list[WorkerCosts]:
    """The workers, with transfers slowed to max-min fair rates of a server link that carries the model in `server` s.

    All workers are assumed to transfer at the same time, as they do in synchronous training that is bound by its
    links; so the forecast is never optimistic.
    """
    slow_pull = _link_slowdowns([sum(worker.pull) for worker in workers], server)
    slow_push = _link_slowdowns([sum(worker.push) for worker in workers], server)
    return [
        replace(worker, pull=[p * down for p in worker.pull], push=[p * up for p in worker.push])
        for worker, down, up in zip(workers, slow_pull, slow_push, strict=True)
    ]


def _link_slowdowns(own: Sequence[float], server: float) -> list[float]:
    demands = [server / seconds if seconds else 0.0 for seconds in own]
    rates = max_min_rates(demands, 1.0)
    return [demand / rate if rate else 1.0 for demand, rate in zip(demands, rates, strict=True)]


def max_min_rates(demands: Sequence[float], capacity: float) -> list[float]:
    """Max-min fair rates: none exceeds its demand, and what small demands leave is divided evenly among the others."""
    rates = [0.0] * len(demands)
    left = capacity
    by_demand = sorted(range(len(demands)), key=demands.__getitem__)
    for served, index in enumerate(by_demand):
        rates[index] = min(demands[index], left / (len(demands) - served))
        left -= rates[index]
    return rates
