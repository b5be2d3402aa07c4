"""Speed with a large fleet, timing only, and memory over a long run."""

from __future__ import annotations

import gc
import time
from typing import Any

import potluck
from benchmarks.machine_info import resident_bytes
from benchmarks.simulation.simulation_workload import fleet_job, peers_job
from potluck.worker_pool import worker_pool

__all__ = ["measure_fleet", "measure_memory", "measure_memory_in_child"]

_WARM_UP_ROUNDS = 100  # until allocator, threads and buffers have reached their size
_POINTS = 25  # of the memory curve


def measure_fleet(devices: int, rounds: int, seed: int) -> dict[str, float]:
    """Seconds to the first committed round, including making the job, and rounds per second after it."""
    marks: list[float] = []
    simulated_s: list[float] = []

    def watch(store: object, now: float) -> None:
        marks.append(time.perf_counter())
        simulated_s.append(now)

    gc.collect()
    start = time.perf_counter()
    result = potluck.simulate(fleet_job(devices, rounds, seed), watch=watch)
    assert result.summary["rounds"] == rounds, result.reason
    measured = {"start_s": marks[0] - start, "virtual_s": simulated_s[min(rounds, 40) - 1]}
    if rounds > 1:
        measured["rounds_per_s"] = (rounds - 1) / (marks[-1] - marks[0])
    return measured


def measure_memory_in_child(rounds: int, seed: int) -> dict[str, Any]:
    """Measure in a new process, whose memory nothing else has used."""
    with worker_pool(1) as pool:
        return pool.submit(measure_memory, rounds, seed).result()


def measure_memory(rounds: int, seed: int) -> dict[str, Any]:
    """Resident bytes after the warm-up and at the end."""
    resident: list[int] = []

    def watch(store: object, now: float) -> None:
        if len(resident) + 1 in (_WARM_UP_ROUNDS, _WARM_UP_ROUNDS + rounds):
            gc.collect()
        resident.append(resident_bytes())

    potluck.simulate(peers_job("mlp", _WARM_UP_ROUNDS + rounds, seed), watch=watch)
    every = max(1, len(resident) // _POINTS)
    return {
        "rounds": rounds,
        "warm_rounds": _WARM_UP_ROUNDS,
        "warm_bytes": resident[_WARM_UP_ROUNDS - 1],
        "end_bytes": resident[-1],
        "series": [[number + 1, round(resident[number] / 2**20, 1)] for number in range(0, len(resident), every)],
    }
