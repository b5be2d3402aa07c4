"""A large fleet without mathematics: seconds until the first round is committed, and rounds per second after it."""

from __future__ import annotations

import gc
import time

import potluck
from benchmarks.simulation.simulation_workload import fleet_job

__all__ = ["measure_fleet"]


def measure_fleet(devices: int, rounds: int, seed: int) -> dict[str, float]:
    """The job itself is made inside the measured time: it is what a user waits for."""
    marks: list[float] = []
    virtual: list[float] = []

    def watch(keeper: object, now: float) -> None:
        marks.append(time.perf_counter())
        virtual.append(now)

    gc.collect()
    start = time.perf_counter()
    result = potluck.simulate(fleet_job(devices, rounds, seed), watch=watch)
    assert result.summary["rounds"] == rounds, result.reason
    found = {"start_s": marks[0] - start, "virtual_s": virtual[min(rounds, 40) - 1]}
    if rounds > 1:
        found["rounds_per_s"] = (rounds - 1) / (marks[-1] - marks[0])
    return found
