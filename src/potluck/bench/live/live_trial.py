"""One job both ways: as real processes on this machine, and in the simulated world, which predicts it."""

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

__all__ = ["measure_rounds", "predict_rounds"]

_WAIT_S = 300.0  # for processes to start, on a machine that is busy with others


class _RoundTimer(potluck.LiveObserver):
    """When each round was committed."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_round(self, store: RunStore, now: float) -> None:
        self.ends.append(time.perf_counter())


def measure_rounds(tables: Mapping[str, Any], *, act_out: bool) -> list[float]:
    """Seconds of every round but the first; with the fleet's links and speeds emulated, or as fast as it goes."""
    timer, options = _RoundTimer(), potluck.LabOptions(wait_s=_WAIT_S, emulate_fleet=act_out)
    with tempfile.TemporaryDirectory() as folder:
        result = potluck.lab(tables, folder=Path(folder) / "run", options=options, observer=timer)
    if result.status != "done":
        raise RuntimeError(f"the live run ended early: {result.reason}")
    return _round_durations(timer.ends)


def predict_rounds(tables: Mapping[str, Any]) -> list[float]:
    """The same in virtual time, without the mathematics."""
    ends: list[float] = []
    job = make(tables)
    samples = min(len(shard) for shard in RoundsSetup.from_job(job, None, None).shards.values())
    ghost = make({**tables, "timing_only": True, "samples": samples})
    potluck.simulate(ghost, watch=lambda keeper, now: ends.append(now))
    return _round_durations(ends)


def _round_durations(ends: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(ends)]
