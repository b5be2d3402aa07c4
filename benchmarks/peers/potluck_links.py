"""Potluck's side of `ddp`: `potluck serve` and `potluck join` behind the same shaped links.

potluck_links.py WORKERS ITERATIONS RATE RECIPE

The coordinator is a machine of its own with a link ten times as fast; that is what it costs to have one.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import links
import verbs
import workload
from crowd import Crowd, wait_for


def main(workers: int, iterations: int, rate: str, recipe: str) -> None:
    if trouble := links.problem():
        raise SystemExit(f"skipped: {trouble}")
    with tempfile.TemporaryDirectory() as folder:
        ends = _measure(Path(folder), workers, iterations, rate, recipe)
    taken = workload.gaps(ends)
    figures = {"iteration_s": statistics.median(taken), "low_s": min(taken), "high_s": max(taken)}
    workload.say(f"Potluck {recipe}, {workers} devices", ["potluck", "torch", "eclipse-zenoh"], figures)


def _measure(folder: Path, workers: int, iterations: int, rate: str, recipe: str) -> list[float]:
    asked = job(workers, iterations + 1, rate, recipe)
    with links.Town([rate] * workers + [_ten_times(rate)]) as town, Crowd(folder, {"OMP_NUM_THREADS": "1"}) as crowd:
        address = f"{town.address(workers)}:7447"
        leading, token = verbs.serve(crowd, asked, folder, address, partial(town.on, workers))
        for number in range(workers):
            verbs.join(crowd, number, address, token, partial(town.on, number))
        wait_for(lambda: leading.poll() is not None, "Potluck's rounds", 120 + 10 * iterations)
    return [item.end for item in verbs.rounds(folder)]


def job(workers: int, rounds: int, rate: str, recipe: str) -> dict[str, Any]:
    """The CNN of `simulation`, one gradient of a batch of 32 per device and round; a plan knows the links' rates."""
    speed = f"{float(rate.removesuffix('mbit')):g} Mbit/s"
    data = {"kind": "synthetic", "shape": [1, 28, 28], "train": workers * 32, "test": 32}
    link = {"up": speed, "down": speed, "latency": 0.0002}
    device = {"name": "device", "count": workers, "flops": "10 GFLOP/s", "link": link}
    return {
        "recipe": recipe,
        "evaluate": 0,
        "checkpoint": 0,
        "task": {"model": "cnn", "data": data},
        "rounds": {"batching": {"kind": "fixed", "size": 32}, "least": workers},
        "stop": {"rounds": rounds},
        "fleet": {"devices": [device], "coordinator": {"link": "server"}},
    }


def _ten_times(rate: str) -> str:
    return f"{10 * float(rate.removesuffix('mbit')):g}mbit"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
