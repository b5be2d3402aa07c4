"""Runs some of the forecast cases in the simulated world, with the same networks, links and plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import potluck
from benchmarks.overlap.overlap_forecast import SERVERS, WORKERS, duplex_iteration_s, shared_iteration_s
from benchmarks.overlap.overlap_workload import BANDWIDTHS, RTT_S, middle_flops, overlap_workload
from potluck.job import Job, make
from potluck.model import zoo
from potluck.planning.segments import Strategy, barrier_iteration_s

__all__ = ["BATCH", "SIMULATED_ROWS", "OverlapSetting", "simulate_case", "simulate_setting"]

BATCH = 32
SIMULATED_ROWS = (2, 5, 8)  # bandwidths at which communication dominates, balances computation, hardly matters
_STRATEGIES: dict[str, Strategy] = {"sync-sgd": "sequential", "dynacomm": "optimal"}
_WARM_UP_ROUNDS = 4  # until iterations that overlap the next one become periodic
_ROUNDS = 8 + _WARM_UP_ROUNDS
_UNLIMITED = 1e15  # bit/s


class OverlapSetting(NamedTuple):
    """A network, the bandwidth of the workers, and that of the coordinator."""

    network: str
    bandwidth: float
    workers: int = 1
    coordinator_bandwidth: float = _UNLIMITED


def simulate_case(network: str) -> dict[str, Any]:
    """Seconds of a steady round and its forecast by recipe and bandwidth, and for eight workers at the highest."""
    return {"simulated": network, "batch": BATCH, "rows": list(_simulated_rows(network))}


def _simulated_rows(network: str) -> Iterator[dict[str, Any]]:
    load = overlap_workload(network, BATCH)
    for bandwidth in (BANDWIDTHS[row] for row in SIMULATED_ROWS):
        setting = OverlapSetting(network, bandwidth)
        for recipe, strategy in _STRATEGIES.items():
            yield simulate_setting(setting, recipe, barrier_iteration_s([load.worker_at(bandwidth)], RTT_S, strategy))
        yield simulate_setting(setting, "duplex", duplex_iteration_s(load, bandwidth))
    top = BANDWIDTHS[-1]
    yield simulate_setting(
        OverlapSetting(network, top, WORKERS, SERVERS * top), "dynacomm", shared_iteration_s(load, top, "optimal")
    )


def simulate_setting(setting: OverlapSetting, recipe: str, forecast_s: float) -> dict[str, Any]:
    """One simulated case beside its forecast."""
    simulated_s = _steady_round_s(_overlap_job(setting, recipe))
    case = {"recipe": recipe, "gbit_s": setting.bandwidth / 1e9, "workers": setting.workers}
    return {**case, "simulated_s": simulated_s, "forecast_s": forecast_s}


def _steady_round_s(job: Job) -> float:
    ends: list[float] = []
    result = potluck.simulate(job, watch=lambda store, now: ends.append(now))
    assert result.status == "done", result.reason
    return (ends[-1] - ends[_WARM_UP_ROUNDS - 1]) / (len(ends) - _WARM_UP_ROUNDS)


def _overlap_job(setting: OverlapSetting, recipe: str) -> Job:
    """One request at a time, which occupies its link for the round trip."""
    data = {"kind": "synthetic", "shape": list(zoo.model_entry(setting.network).shape), "classes": 1000}
    device = {
        "name": "d",
        "count": setting.workers,
        "flops": middle_flops(),
        "memory": "64 GiB",  # the published workers' memory is not known and does not matter here
        "link": _link_table(setting.bandwidth, RTT_S),
    }
    cut = {} if recipe == "sync-sgd" else {"transfer": {"window": 1}}  # sync-sgd sends the whole model as one segment
    tables = {
        "task": {"model": setting.network, "data": data},
        "recipe": recipe,
        "rounds": {"batching": {"size": BATCH}, **cut},
        "fleet": {"coordinator": {"link": _link_table(setting.coordinator_bandwidth, 0.0)}, "devices": [device]},
        "stop": {"rounds": _ROUNDS},
        "timing_only": True,
        "samples": BATCH,
        "evaluate": 0,
        "checkpoint": 0,
    }
    return make(tables)


def _link_table(bit_s: float, overhead_s: float) -> dict[str, Any]:
    return {"up": f"{bit_s} bit/s", "down": f"{bit_s} bit/s", "latency": 0.0, "overhead": overhead_s}
