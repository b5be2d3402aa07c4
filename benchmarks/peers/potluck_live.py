"""Potluck's side of `live`: `potluck lab`, each device takes one gradient of one sample.

potluck_live.py DEVICES ROUNDS
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import verbs
import workload


def main(devices: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ends = verbs.lab(job(devices, rounds + 1), Path(folder))
    assert len(ends) == rounds + 1, f"only {len(ends)} rounds came about"
    taken = workload.gaps(ends)
    figures = {"round_s": statistics.median(taken), "round_low_s": min(taken), "round_high_s": max(taken)}
    workload.say(f"Potluck, lab of {devices} devices", ["potluck", "torch", "eclipse-zenoh"], figures)


def job(devices: int, rounds: int) -> dict[str, Any]:
    """A model of 1 MiB; links and devices are as fast as this machine is."""
    data = {"kind": "synthetic", "shape": [1, 28, 28], "train": devices, "test": 1}
    return {
        "recipe": "fedavg",
        "evaluate": 0,
        "checkpoint": 0,
        "task": {"model": "mlp", "options": {"hidden": [330]}, "data": data},
        "rounds": {"local": {"kind": "sgd", "steps": 1}, "batching": {"kind": "fixed", "size": 1}},
        "stop": {"rounds": rounds},
        "fleet": {
            "coordinator": {"link": verbs.FAST, "flops": verbs.FLOPS},
            "devices": [{"name": "device", "count": devices, "flops": verbs.FLOPS, "link": verbs.FAST}],
        },
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
