"""Runs one job twice: live on this machine, and in the simulated world, which predicts it.

Where times are compared, the modelled devices are much slower than this machine, so that their modelled speed and links
determine the result, not the number of processes that share its cores.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import potluck
from potluck.job import make
from potluck.run.rounds_setup import RoundsSetup
from potluck.run.run_store import RunStore

__all__ = ["empty_job", "measure_rounds", "overlapped_job", "predict_rounds", "uneven_job"]

_FAST = {"up": "unlimited", "down": "unlimited", "latency": "0 s", "overhead": "0 s"}
_LEASE = "10 s"


def empty_job(devices: int, rounds: int) -> dict[str, Any]:
    """A model of 1 MiB, trained for one step on one sample, so that almost all of the time is overhead of the round."""
    return {
        "recipe": "fedavg",
        "task": {
            "model": "mlp",
            "options": {"hidden": [330]},
            "data": {"kind": "synthetic", "shape": [1, 28, 28], "train": devices, "test": 1},
        },
        "rounds": {"local": {"kind": "sgd", "steps": 1}, "batching": {"kind": "fixed", "size": 1}},
        "fleet": {
            "coordinator": {"link": _FAST},
            "devices": [{"name": "d", "count": devices, "flops": "1 TFLOP/s", "link": _FAST}],
            "lease": _LEASE,
        },
        **_rounds_only(rounds),
    }


def uneven_job(rounds: int, seed: int) -> dict[str, Any]:
    """Eight devices of four speeds behind four kinds of links; 200 kB in each direction."""
    kinds = ((40, 4, "30 ms"), (60, 8, "10 ms"), (90, 12, "5 ms"), (120, 20, "2 ms"))
    devices = [
        {"name": f"kind-{index}", "count": 2, "flops": f"{mflops} MFLOP/s", "link": _link_table(mbit, latency)}
        for index, (mflops, mbit, latency) in enumerate(kinds)
    ]
    return {
        "recipe": "fedavg",
        "seed": seed,
        "task": {
            "model": "mlp",
            "options": {"hidden": [64]},
            "data": {"kind": "synthetic", "shape": [1, 28, 28], "train": 400, "test": 10},
        },
        "fleet": {"devices": devices, "lease": _LEASE},
        **_rounds_only(rounds),
    }


def overlapped_job(recipe: str, rounds: int) -> dict[str, Any]:
    """Two devices with ResNet-20 and 4 samples: pull and push take about as long as forward and backward."""
    return {
        "recipe": recipe,
        "task": {"model": "resnet20", "data": {"kind": "synthetic", "shape": [3, 32, 32], "train": 64, "test": 8}},
        "rounds": {"batching": {"kind": "fixed", "size": 4}},
        "fleet": {
            "devices": [{"name": "d", "count": 2, "flops": "700 MFLOP/s", "link": _link_table(12.6, "2 ms")}],
            "lease": _LEASE,
        },
        **_rounds_only(rounds),
    }


def _rounds_only(rounds: int) -> dict[str, Any]:
    """One warm-up round more, no evaluations, no checkpoints."""
    return {"stop": {"rounds": rounds + 1}, "evaluate": 0, "checkpoint": 0}


def _link_table(mbit: float, latency: str) -> dict[str, str]:
    return {"up": f"{mbit} Mbit/s", "down": f"{mbit} Mbit/s", "latency": latency, "overhead": "1 ms"}


_JOIN_TIMEOUT_S = 300.0  # for processes to start on a busy machine


class _RoundTimer(potluck.LiveObserver):
    """Records when each round was committed."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_round(self, store: RunStore, now: float) -> None:
        self.ends.append(time.perf_counter())


def measure_rounds(tables: Mapping[str, Any], *, emulate_fleet: bool) -> list[float]:
    """Seconds of every round but the first, with the fleet's links and speeds emulated or at full speed."""
    timer, options = _RoundTimer(), potluck.LabOptions(wait_s=_JOIN_TIMEOUT_S, emulate_fleet=emulate_fleet)
    with tempfile.TemporaryDirectory() as folder:
        result = potluck.lab(tables, folder=Path(folder) / "run", options=options, observer=timer)
    if result.status != "done":
        raise RuntimeError(f"the live run ended early: {result.reason}")
    return _round_durations(timer.ends)


def predict_rounds(tables: Mapping[str, Any]) -> list[float]:
    """The same rounds in the simulated world, timing only."""
    ends: list[float] = []
    job = make(tables)
    samples = min(len(shard) for shard in RoundsSetup.from_job(job, None, None).shards.values())
    timing = make({**tables, "timing_only": True, "samples": samples})
    potluck.simulate(timing, watch=lambda store, now: ends.append(now))
    return _round_durations(ends)


def _round_durations(ends: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(ends)]
