"""Potluck's side of `live`: `potluck lab`, each device takes one gradient of one sample.

potluck_live DEVICES ROUNDS
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers import peer_workload, potluck_commands


def main(devices: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ends = potluck_commands.run_lab(live_job(devices, rounds + 1), Path(folder))
    assert len(ends) == rounds + 1, f"only {len(ends)} rounds were committed"
    durations = peer_workload.round_durations(ends)
    figures = {"round_s": statistics.median(durations), "round_low_s": min(durations), "round_high_s": max(durations)}
    peer_workload.print_answer(f"Potluck, lab of {devices} devices", ["potluck", "torch", "eclipse-zenoh"], figures)


def live_job(devices: int, rounds: int) -> dict[str, Any]:
    """A model of 1 MiB; links and devices run as fast as this machine can."""
    data = {"kind": "synthetic", "shape": [1, 28, 28], "train": devices, "test": 1}
    return {
        "recipe": "fedavg",
        "evaluate": 0,
        "checkpoint": 0,
        "task": {"model": "mlp", "options": {"hidden": [330]}, "data": data},
        "rounds": {"local": {"kind": "sgd", "steps": 1}, "batching": {"kind": "fixed", "size": 1}},
        "stop": {"rounds": rounds},
        "fleet": {
            "coordinator": {"link": potluck_commands.FAST},
            "devices": [
                {"name": "device", "count": devices, "flops": potluck_commands.FLOPS, "link": potluck_commands.FAST}
            ],
        },
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
