"""Potluck's side of `ddp`: `potluck serve` and `potluck join` behind the same shaped links.

potluck_links WORKERS ITERATIONS RATE RECIPE

The coordinator is a separate machine whose link is ten times as fast; DDP needs none.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import shaped_network
from benchmarks.peers import peer_workload, potluck_commands
from benchmarks.peers.process_group import ProcessGroup, wait_for


def main(workers: int, iterations: int, rate: str, recipe: str) -> None:
    if missing := shaped_network.missing_requirement():
        raise SystemExit(f"skipped: {missing}")
    with tempfile.TemporaryDirectory() as folder:
        ends = _measure(Path(folder), workers, iterations, rate, recipe)
    durations = peer_workload.round_durations(ends)
    figures = {"iteration_s": statistics.median(durations), "low_s": min(durations), "high_s": max(durations)}
    peer_workload.print_answer(f"Potluck {recipe}, {workers} devices", ["potluck", "torch", "eclipse-zenoh"], figures)


def _measure(folder: Path, workers: int, iterations: int, rate: str, recipe: str) -> list[float]:
    job = shaped_job(workers, iterations + 1, rate, recipe)
    with (
        shaped_network.ShapedNetwork([rate] * workers + [ten_times(rate)]) as network,
        ProcessGroup(folder, {"OMP_NUM_THREADS": "1"}) as group,
    ):
        address = f"{network.address(workers)}:7447"
        coordinator, token = potluck_commands.start_serve(
            group, job, folder, address, partial(network.command_on, workers)
        )
        for number in range(workers):
            potluck_commands.start_join(group, number, address, token, partial(network.command_on, number))
        wait_for(lambda: coordinator.poll() is not None, "Potluck's rounds", 120 + 10 * iterations)
    return [committed.end for committed in potluck_commands.read_rounds(folder)]


def shaped_job(workers: int, rounds: int, rate: str, recipe: str) -> dict[str, Any]:
    """The CNN of `simulation`, one gradient of a batch of 32 per device and round; plans use the links' rates."""
    speed = f"{float(rate.removesuffix('mbit')):g} Mbit/s"
    data = {"kind": "synthetic", "shape": [1, 28, 28], "train": workers * 32, "test": 32}
    link = {"up": speed, "down": speed, "latency": 0.0002}
    device = {"name": "device", "count": workers, "flops": "10 GFLOP/s", "link": link}
    return {
        "recipe": recipe,
        "evaluate": 0,
        "checkpoint": 0,
        "task": {"model": "cnn", "data": data},
        "rounds": {
            "batching": {"kind": "fixed", "size": 32},
            "server": {"kind": "sgd", "lr": 0.05, "momentum": 0.0},  # as DDP's
            "least": workers,
        },
        "stop": {"rounds": rounds},
        "fleet": {"devices": [device], "coordinator": {"link": "server"}},
    }


def ten_times(rate: str) -> str:
    return f"{10 * float(rate.removesuffix('mbit')):g}mbit"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
