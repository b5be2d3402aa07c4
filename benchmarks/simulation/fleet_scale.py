"""Speed with a large fleet, timing only, and memory over a long run."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from typing import Any

import potluck
from benchmarks.machine_info import resident_bytes
from benchmarks.simulation.simulation_workload import fleet_job, peers_job

__all__ = ["measure_fleet", "measure_in_child", "measure_memory"]


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


_WARM = 100  # rounds after which allocator, threads and buffers have all they need
_POINTS = 25  # of the curve


def measure_in_child(rounds: int, seed: int) -> dict[str, Any]:
    code = f"from {__name__} import print_measurement; print_measurement({rounds}, {seed})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the child that measures memory failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def print_measurement(rounds: int, seed: int) -> None:
    """What the child does."""
    sys.stdout.write(json.dumps(measure_memory(rounds, seed)) + "\n")


def measure_memory(rounds: int, seed: int) -> dict[str, Any]:
    """Resident bytes after the warm-up, and at the end."""
    held: list[int] = []

    def watch(keeper: object, now: float) -> None:
        if len(held) + 1 in (_WARM, _WARM + rounds):
            gc.collect()
        held.append(resident_bytes())

    potluck.simulate(peers_job("mlp", _WARM + rounds, seed), watch=watch)
    every = max(1, len(held) // _POINTS)
    return {
        "rounds": rounds,
        "warm_rounds": _WARM,
        "warm_bytes": held[_WARM - 1],
        "end_bytes": held[-1],
        "series": [[number + 1, round(held[number] / 2**20, 1)] for number in range(0, len(held), every)],
    }
