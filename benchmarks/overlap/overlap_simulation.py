"""Some of the forecast cases lived through, round by round, in the simulated world: same networks, links and plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import potluck
from benchmarks.overlap.overlap_forecast import SERVERS, WORKERS, duplex_iteration_s, shared_iteration_s
from benchmarks.overlap.overlap_workload import BANDWIDTHS, RTT_S, middle_flops, overlap_workload
from potluck.job import Job, make
from potluck.model import zoo
from potluck.planning.segments import Strategy, barrier_iteration_s

__all__ = ["BATCH", "PLACES", "OverlapSetting", "simulate_case", "simulate_setting"]

BATCH = 32
PLACES = (2, 5, 8)  # of the ten bandwidths: links that dominate, that balance, that hardly matter
_STRATEGIES: dict[str, Strategy] = {"sync-sgd": "sequential", "dynacomm": "optimal"}
_UNHURRIED = 4  # rounds until an iteration that runs ahead repeats itself
_ROUNDS = 8 + _UNHURRIED
_WIDE = 1e15  # bit/s


class OverlapSetting(NamedTuple):
    """Who meets whom over which links."""

    network: str
    bandwidth: float
    workers: int = 1
    centre: float = _WIDE


def simulate_case(network: str) -> dict[str, Any]:
    """Seconds of a steady round beside the forecast: recipes by bandwidths, and eight workers at the highest."""
    return {"lived": network, "batch": BATCH, "rows": list(_simulated_rows(network))}


def _simulated_rows(network: str) -> Iterator[dict[str, Any]]:
    load = overlap_workload(network, BATCH)
    for bandwidth in (BANDWIDTHS[place] for place in PLACES):
        setting = OverlapSetting(network, bandwidth)
        for recipe, strategy in _STRATEGIES.items():
            yield simulate_setting(setting, recipe, barrier_iteration_s([load.worker_at(bandwidth)], RTT_S, strategy))
        yield simulate_setting(setting, "duplex", duplex_iteration_s(load, bandwidth))
    top = BANDWIDTHS[-1]
    yield simulate_setting(
        OverlapSetting(network, top, WORKERS, SERVERS * top), "dynacomm", shared_iteration_s(load, top, "optimal")
    )


def simulate_setting(setting: OverlapSetting, recipe: str, forecast_s: float) -> dict[str, Any]:
    """One case beside what was foreseen for it."""
    lived_s = _steady_round_s(_overlap_job(setting, recipe))
    found = {"recipe": recipe, "gbit_s": setting.bandwidth / 1e9, "workers": setting.workers}
    return {**found, "lived_s": lived_s, "forecast_s": forecast_s}


def _steady_round_s(job: Job) -> float:
    ends: list[float] = []
    result = potluck.simulate(job, watch=lambda keeper, now: ends.append(now))
    assert result.status == "done", result.reason
    return (ends[-1] - ends[_UNHURRIED - 1]) / (len(ends) - _UNHURRIED)


def _overlap_job(setting: OverlapSetting, recipe: str) -> Job:
    """One request at a time, which holds its link for the round trip."""
    data = {"kind": "synthetic", "shape": list(zoo.model_entry(setting.network).shape), "classes": 1000}
    device = {
        "name": "d",
        "count": setting.workers,
        "flops": middle_flops(),
        "link": _link_table(setting.bandwidth, RTT_S),
    }
    tables = {
        "task": {"model": setting.network, "data": data},
        "recipe": recipe,
        "rounds": {"batching": {"size": BATCH}, "transfer": {"window": 1}},
        "fleet": {"coordinator": {"link": _link_table(setting.centre, 0.0)}, "devices": [device]},
        "stop": {"rounds": _ROUNDS},
        "timing_only": True,
        "samples": BATCH,
        "evaluate": 0,
        "checkpoint": 0,
    }
    return make(tables)


def _link_table(bit_s: float, overhead_s: float) -> dict[str, float]:
    return {"up": bit_s / 8, "down": bit_s / 8, "latency": 0.0, "overhead": overhead_s}
