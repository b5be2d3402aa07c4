"""Seconds per iteration of a whole group of workers: with a barrier between push and pull, and without (duplex)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.errors import UserError
from potluck.planning.segments.costs import check_seconds, layer_seconds
from potluck.planning.segments.planner import Strategy, plan
from potluck.planning.segments.rehearsal import Cuts, Timing, Worker
from potluck.planning.segments.search import Search, starting_points
from potluck.planning.segments.sharing import shared

__all__ = ["DuplexForecast", "duplex", "iteration"]


@dataclass(frozen=True, slots=True)
class DuplexForecast:
    """`iteration` seconds with the given cuts of each worker, against `barrier` seconds of the optimal plan.

    Where duplex does not pay, `overlaps` is False, the cuts are the optimal ones and both times are the same.
    """

    iteration: float
    barrier: float
    cuts: tuple[Cuts, ...]
    overlaps: bool

    @property
    def gain(self) -> float:
        """The share of the iteration time that duplex takes away."""
        return 1.0 - self.iteration / self.barrier if self.barrier else 0.0


def iteration(
    workers: Sequence[Worker],
    overhead: float,
    strategy: Strategy = "optimal",
    latency: float = 0.0,
    merge: float = 0.0,
    server: float | None = None,
) -> float:
    """With a barrier: all pull and run forward, then run backward and push; the slowest decides; then one merge."""
    crew = _checked(workers, server)
    check_seconds(merge=merge)
    return _slowest([_planned(worker, overhead, strategy, latency) for worker in crew]) + merge


def duplex(
    workers: Sequence[Worker],
    overhead: float,
    latency: float = 0.0,
    merge: float = 0.0,
    server: float | None = None,
    climbs: int = 8,
    trials: int = 200,
) -> DuplexForecast:
    """Without a barrier: the best cuts found for the policy in `rehearsal`, and the seconds of a steady iteration.

    Workers may differ. `server`, if given, is how long the server's own link takes to carry the whole model in one
    direction; the workers share it fairly. `climbs` starting points are improved, by at most `trials` rehearsals each.
    """
    crew = _checked(workers, server)
    check_seconds(overhead=overhead, latency=latency, merge=merge)
    planned = [_planned(worker, overhead, "optimal", latency) for worker in crew]
    barrier = _slowest(planned) + merge
    starts = starting_points(crew, (cuts for each, _ in planned for cuts in (each.pull, each.push)))
    found = Search(crew, Timing(overhead, latency, merge)).best(starts, climbs, trials)
    if found.seconds < barrier:
        return DuplexForecast(found.seconds, barrier, (Cuts(found.cuts, found.cuts),) * len(crew), True)
    return DuplexForecast(barrier, barrier, tuple(each for each, _ in planned), False)


def _planned(worker: Worker, overhead: float, strategy: Strategy, latency: float) -> tuple[Cuts, float]:
    pull = plan(worker.forward, worker.pull, overhead, "pull", strategy, latency)
    push = plan(worker.backward, worker.push, overhead, "push", strategy, latency)
    return Cuts(pull.cuts, push.cuts), pull.makespan + push.makespan


def _slowest(planned: Sequence[tuple[Cuts, float]]) -> float:
    return max(seconds for _, seconds in planned)


def _checked(workers: Sequence[Worker], server: float | None) -> list[Worker]:
    if not workers:
        raise UserError("there are no workers to forecast; give at least one")
    crew = [
        Worker(*(layer_seconds(f"workers[{i}].{name}", getattr(worker, name)) for name in Worker.__slots__))
        for i, worker in enumerate(workers)
    ]
    lengths = sorted({len(getattr(worker, name)) for worker in crew for name in Worker.__slots__})
    if len(lengths) != 1 or lengths == [0]:
        raise UserError(f"workers have {lengths} layers; give all of them the same number, at least one")
    if server is None:
        return crew
    check_seconds(server=server)
    return shared(crew, server)
