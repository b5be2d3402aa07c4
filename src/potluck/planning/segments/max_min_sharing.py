"""What is left of the workers' links when all of them meet at the server's own link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from potluck.planning.segments.duplex_simulation import WorkerCosts

__all__ = ["max_min_rates", "share_server_link"]


def share_server_link(workers: Sequence[WorkerCosts], server: float) -> list[WorkerCosts]:
    """The workers with transfers slowed to a fair share of a server link that carries the model in `server` seconds.

    All workers are taken to transfer at the same time, which synchronous training comes to when links are what
    it waits for; so this never promises too much.
    """
    slow_pull = _link_slowdowns([sum(worker.pull) for worker in workers], server)
    slow_push = _link_slowdowns([sum(worker.push) for worker in workers], server)
    return [
        replace(worker, pull=[p * down for p in worker.pull], push=[p * up for p in worker.push])
        for worker, down, up in zip(workers, slow_pull, slow_push, strict=True)
    ]


def _link_slowdowns(own: Sequence[float], server: float) -> list[float]:
    demands = [server / seconds if seconds else 0.0 for seconds in own]
    shares = max_min_rates(demands, 1.0)
    return [demand / share if share else 1.0 for demand, share in zip(demands, shares, strict=True)]


def max_min_rates(demands: Sequence[float], capacity: float) -> list[float]:
    """Max-min fairness: nobody gets more than it asks for, and what the modest leave the others divide evenly."""
    shares = [0.0] * len(demands)
    left = capacity
    by_demand = sorted(range(len(demands)), key=demands.__getitem__)
    for served, index in enumerate(by_demand):
        shares[index] = min(demands[index], left / (len(demands) - served))
        left -= shares[index]
    return shares
