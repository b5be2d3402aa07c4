"""A device whose computation hangs while its heartbeats go on, in rounds and in a pipeline: real processes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from potluck import LabOptions, lab
from potluck.journal import Instant, Span, read_journal

__all__ = ["SCENARIO"]

_TASK = {"model": "mlp", "data": {"kind": "synthetic", "train": 200, "test": 20}, "options": {"hidden": [16] * 3}}
_LOOPS: dict[str, dict[str, Any]] = {
    "rounds": {"recipe": "fedavg", "rounds": {"turn_patience": "3 s", "retry": "500 ms", "patience": "60 s"}},
    "pipeline": {
        "recipe": "ftpipehd",
        # Layers do not move while nothing fails: the device that hangs holds some.
        "pipeline": {
            "batch": 8,
            "retry": "300 ms",
            "patience": "60 s",
            "optimizer": {"lr": 1e-3, "momentum": 0.0},  # stable with many batches of 8 in flight
            "adaptation": {"every": 0, "on_change": False},
        },
    },
}


def _commit_times(run: Path) -> list[float]:
    """When rounds or batches were committed."""
    records = list(read_journal(run / "journal.jsonl"))
    rounds = [record.end for record in records if isinstance(record, Span) and record.name == "round"]
    return rounds or [record.at for record in records if isinstance(record, Instant) and record.name == "committed"]


def _events(run: Path, name: str) -> int:
    return sum(isinstance(record, Instant) and record.name == name for record in read_journal(run / "journal.jsonl"))


def measure(context: ScenarioContext) -> list[Figure]:
    figures = []
    for loop, tables in _LOOPS.items():
        context.show(loop)
        hang = {"kind": "hang", "device": "d-1", "at": "3 s", "lasting": f"{context.size['hang_s']} s"}
        fleet = {"devices": [{"name": "d", "count": 3, "flops": "20 MFLOP/s"}], "lease": 1.0, "faults": [hang]}
        stop = {"time": f"{context.size['seconds']} s"}
        job = {**tables, "task": _TASK, "fleet": fleet, "stop": stop, "evaluate": 0, "seed": context.seed}
        run = context.folder / loop
        result = lab(job, folder=run, options=LabOptions(120.0))
        times = [0.0, *_commit_times(run)]
        standstill = max((after - before for before, after in pairwise(times)), default=0.0)
        figures += [
            Figure(
                name=f"{loop}: run ended by the hang",
                unit="",
                measured=int(result.status != "done"),
                goal=Goal("≤", 0),
                executed="live",
            ),
            Figure(
                name=f"{loop}: longest standstill", unit="s", measured=standstill, goal=Goal("≤", 10.0), executed="live"
            ),
            Figure(
                name=f"{loop}: left out", unit="", measured=_events(run, "left out"), goal=Goal("≥", 1), executed="live"
            ),
            Figure(
                name=f"{loop}: answers again",
                unit="",
                measured=_events(run, "answers again"),
                goal=Goal("≥", 1),
                executed="live",
            ),
        ]
    return figures


SCENARIO = FaultScenario(
    title="a device hangs",
    clause="A device that beats but never answers costs a round its patience with that device, not the run.",
    executed="live",
    measure=measure,
    quick={"hang_s": 8, "seconds": 14},
    full={"hang_s": 20, "seconds": 60},
    quick_s=30.0,
    full_s=140.0,
)
