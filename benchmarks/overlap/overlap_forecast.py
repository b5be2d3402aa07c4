"""Forecasts the seconds per iteration of every strategy, of eight workers, and of duplex."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from benchmarks.overlap.overlap_workload import (
    BANDWIDTHS,
    BATCHES,
    NETWORKS,
    RTT_S,
    OverlapWorkload,
    admissible_flops,
    middle_flops,
    overlap_workload,
)
from potluck.loops.parts.model_transfer import DuplexTransfer
from potluck.planning.segments import (
    STRATEGIES,
    Direction,
    Strategy,
    barrier_iteration_s,
    forecast_duplex,
    plan_segments,
)

__all__ = [
    "SERVERS",
    "WORKERS",
    "duplex_iteration_s",
    "forecast_case",
    "measure_planning",
    "shared_iteration_s",
    "speed_sensitivity",
]

WORKERS = 8
SERVERS = 4
_LAYERS = 152


def forecast_case(network: str, batch: int) -> dict[str, Any]:
    """One row per bandwidth."""
    load = overlap_workload(network, batch)
    return {
        "network": network,
        "batch": batch,
        "layers": len(load.forward),
        "largest_layer_share": max(load.param_bytes) / sum(load.param_bytes),
        "device_flops": middle_flops(),
        "compute_s": load.compute_s,
        "balance_gbit_s": load.balance_bandwidth / 1e9,
        "rows": [_forecast_row(load, bandwidth) for bandwidth in BANDWIDTHS],
    }


def _forecast_row(load: OverlapWorkload, bandwidth: float) -> dict[str, Any]:
    worker = load.worker_at(bandwidth)
    seconds = {strategy: barrier_iteration_s([worker], RTT_S, strategy) for strategy in STRATEGIES}
    communication = load.balance_bandwidth / bandwidth  # against computation
    row: dict[str, Any] = {
        "gbit_s": bandwidth / 1e9,
        "communication": communication,
        "iteration_s": seconds,
        "together_s": {strategy: shared_iteration_s(load, bandwidth, strategy) for strategy in STRATEGIES},
    }
    if communication >= 1:
        row["duplex_s"] = duplex_iteration_s(load, bandwidth)
    return row


def duplex_iteration_s(load: OverlapWorkload, bandwidth: float) -> float:
    """A steady iteration of duplex, which also splits large layers; the other strategies would gain nothing from it."""
    assert DuplexTransfer.split_layer_fraction is not None
    return forecast_duplex(
        [load.split_large_layers(DuplexTransfer.split_layer_fraction).worker_at(bandwidth)], RTT_S
    ).iteration


def shared_iteration_s(load: OverlapWorkload, bandwidth: float, strategy: Strategy) -> float:
    """An iteration of eight workers that share four servers, each with a link as fast as a worker's."""
    worker = load.worker_at(bandwidth)
    return barrier_iteration_s([worker] * WORKERS, RTT_S, strategy, server=sum(worker.pull) / SERVERS)


def speed_sensitivity() -> dict[str, Any]:
    """The largest reduction on the slowest and on the fastest device that the published band admits."""
    slowest, fastest = admissible_flops()
    return {"slowest": _largest_reduction(slowest), "fastest": _largest_reduction(fastest), "flops": [slowest, fastest]}


def _largest_reduction(flops: float) -> float:
    loads = [overlap_workload(network, batch, flops) for network in NETWORKS for batch in BATCHES]
    workers = [load.worker_at(bandwidth) for load in loads for bandwidth in BANDWIDTHS]
    return max(
        1 - barrier_iteration_s([each], RTT_S, "optimal") / barrier_iteration_s([each], RTT_S, "sequential")
        for each in workers
    )


def measure_planning(runs: int, seed: int) -> dict[str, Any]:
    """Median milliseconds of one optimal plan of 152 random layers in the slower direction, measured five times."""
    rng = np.random.default_rng(seed)
    compute, transfer = (list(rng.lognormal(-4.0, 1.0, _LAYERS)) for _ in range(2))
    directions: tuple[Direction, ...] = ("pull", "push")
    medians = [max(_median_ms(compute, transfer, direction, runs) for direction in directions) for _ in range(5)]
    return {"layers": _LAYERS, "runs": runs, "milliseconds": medians}


def _median_ms(compute: list[float], transfer: list[float], direction: Direction, runs: int) -> float:
    durations = []
    for _ in range(runs):
        start = time.perf_counter_ns()
        plan_segments(compute, transfer, RTT_S, direction)
        durations.append(time.perf_counter_ns() - start)
    return statistics.median(durations) / 1e6
