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
from potluck.run.run_store import RunStore

__all__ = ["empty_job", "measure_rounds", "predict_rounds", "recipe_job"]

_FAST = {"up": "unlimited", "down": "unlimited", "latency": "0 s", "overhead": "0 s"}
_LINK = {"up": "4 Mbit/s", "down": "4 Mbit/s", "latency": "10 ms", "overhead": "1 ms"}
_JOIN_TIMEOUT_S = 300.0  # for processes to start on a busy machine
_PIPELINES = ("ftpipehd", "ftpipehd-as-published", "pipedream", "gpipe", "respipe", "single")
_FIXED_BATCHES = ("ddl", "scadles-truncation", "scadles-compression")
_DATA = {"kind": "synthetic", "classes": 4, "shape": [1, 28, 28], "train": 96, "test": 8}
_MLP = {"model": "mlp", "options": {"hidden": [64]}, "data": _DATA}
_DEEP = {"model": "mlp", "options": {"hidden": [64, 48, 48, 32]}, "data": _DATA}
_ADAPTED = {"model": "benchmarks.networks:adapted_mlp", "data": _DATA}


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
            "lease": "10 s",
        },
        **_rounds_only(rounds),
    }


def recipe_job(recipe: str, rounds: int, seed: int) -> dict[str, Any]:
    """Three uneven devices; computing and sending 200 kB each take tenths of seconds."""
    devices = [{"name": f"d-{mflops}", "flops": f"{mflops} MFLOP/s", "link": _LINK} for mflops in (20, 30, 45)]
    job: dict[str, Any] = {
        "recipe": recipe,
        "seed": seed,
        "task": _ADAPTED if recipe == "lora-rank" else _MLP,
        "fleet": {"devices": devices, "lease": "10 s"},
        **_rounds_only(rounds),
    }
    if recipe in _PIPELINES:
        pipeline = {"batch": 16, "optimizer": {"lr": 1e-3, "momentum": 0.0}}
        return {**job, "task": _DEEP, "pipeline": pipeline, "stop": {"rounds": 4 * rounds + 1}}
    if recipe == "ddl" or recipe.startswith("scadles"):
        stream = {"stream": {"rate": {"kind": "uniform", "mean": 30.0, "deviation": 14.0}}}
        batching = {"rounds": {"batching": {"kind": "fixed", "size": 16}}} if recipe in _FIXED_BATCHES else {}
        return {**job, **stream, **batching}
    return {**job, "rounds": {"batching": {"size": 16}}}


def _rounds_only(rounds: int) -> dict[str, Any]:
    """One warm-up round more, no evaluations, no checkpoints."""
    return {"stop": {"rounds": rounds + 1}, "evaluate": 0, "checkpoint": 0}


class _RoundTimer(potluck.LiveObserver):
    """Records when each round was committed."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_round(self, store: RunStore, now: float) -> None:
        self.ends.append(time.perf_counter())


def measure_rounds(tables: Mapping[str, Any], *, emulate_fleet: bool) -> list[float]:
    """Seconds of every round or batch but the first, with the fleet's links and speeds emulated or at full speed."""
    timer, options = _RoundTimer(), potluck.LabOptions(wait_s=_JOIN_TIMEOUT_S, emulate_fleet=emulate_fleet)
    with tempfile.TemporaryDirectory() as folder:
        result = potluck.lab(tables, folder=Path(folder) / "run", options=options, observer=timer)
    if result.status != "done":
        raise RuntimeError(f"the live run ended early: {result.reason}")
    return _round_durations(timer.ends)


def predict_rounds(tables: Mapping[str, Any]) -> list[float]:
    """The same rounds in the simulated world, in its time."""
    ends: list[float] = []
    potluck.simulate(make(tables), watch=lambda store, now: ends.append(now))
    return _round_durations(ends)


def _round_durations(ends: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(ends)]
