"""Seconds per iteration of every strategy, of eight workers, and of duplex, as the planners foresee them."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from potluck.bench.overlap.workload import (
    BANDWIDTHS,
    BATCHES,
    NETWORKS,
    RTT_S,
    Workload,
    admissible_flops,
    device_flops,
    workload,
)
from potluck.loops.parts.transfer import Duplex
from potluck.planning.segments import STRATEGIES, Direction, Strategy, duplex, iteration, plan

__all__ = ["SERVERS", "WORKERS", "duplex_iteration", "forecast_case", "planning_time", "sensitivity", "together"]

WORKERS = 8
SERVERS = 4
_LAYERS = 152


def forecast_case(network: str, batch: int) -> dict[str, Any]:
    """One row per bandwidth."""
    load = workload(network, batch)
    return {
        "network": network,
        "batch": batch,
        "layers": len(load.forward),
        "largest_layer_share": max(load.param_bytes) / sum(load.param_bytes),
        "device_flops": device_flops(),
        "compute_s": load.compute_s,
        "balance_gbit_s": load.balance / 1e9,
        "rows": [_row(load, bandwidth) for bandwidth in BANDWIDTHS],
    }


def _row(load: Workload, bandwidth: float) -> dict[str, Any]:
    worker = load.worker(bandwidth)
    seconds = {strategy: iteration([worker], RTT_S, strategy) for strategy in STRATEGIES}
    communication = load.balance / bandwidth  # against computation
    row: dict[str, Any] = {
        "gbit_s": bandwidth / 1e9,
        "communication": communication,
        "iteration_s": seconds,
        "together_s": {strategy: together(load, bandwidth, strategy) for strategy in STRATEGIES},
    }
    if communication >= 1:
        row["duplex_s"] = duplex_iteration(load, bandwidth)
    return row


def duplex_iteration(load: Workload, bandwidth: float) -> float:
    """A steady iteration of duplex, which cuts inside large layers too; for the others that would gain nothing."""
    assert Duplex.finest is not None
    return duplex([load.finer(Duplex.finest).worker(bandwidth)], RTT_S).iteration


def together(load: Workload, bandwidth: float, strategy: Strategy) -> float:
    """An iteration of eight workers that share four servers, each with a link like theirs."""
    worker = load.worker(bandwidth)
    return iteration([worker] * WORKERS, RTT_S, strategy, server=sum(worker.pull) / SERVERS)


def sensitivity() -> dict[str, Any]:
    """The largest cut if the device is the slowest or the fastest that the published band admits."""
    slowest, fastest = admissible_flops()
    return {"slowest": _largest_cut(slowest), "fastest": _largest_cut(fastest), "flops": [slowest, fastest]}


def _largest_cut(flops: float) -> float:
    loads = [workload(network, batch, flops) for network in NETWORKS for batch in BATCHES]
    workers = [load.worker(bandwidth) for load in loads for bandwidth in BANDWIDTHS]
    return max(1 - iteration([each], RTT_S, "optimal") / iteration([each], RTT_S, "sequential") for each in workers)


def planning_time(runs: int, seed: int) -> dict[str, Any]:
    """Median milliseconds of one optimal plan of 152 invented layers; the slower direction, several rounds of it."""
    rng = np.random.default_rng(seed)
    compute, transfer = (list(rng.lognormal(-4.0, 1.0, _LAYERS)) for _ in range(2))
    directions: tuple[Direction, ...] = ("pull", "push")
    medians = [max(_median_ms(compute, transfer, direction, runs) for direction in directions) for _ in range(5)]
    return {"layers": _LAYERS, "runs": runs, "milliseconds": medians}


def _median_ms(compute: list[float], transfer: list[float], direction: Direction, runs: int) -> float:
    took = []
    for _ in range(runs):
        start = time.perf_counter_ns()
        plan(compute, transfer, RTT_S, direction)
        took.append(time.perf_counter_ns() - start)
    return statistics.median(took) / 1e6
