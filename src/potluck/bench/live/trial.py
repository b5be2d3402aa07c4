"""One job both ways: as real processes on this machine, and in the simulated world, which predicts it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import potluck
from potluck.job import Job, make
from potluck.run.keeper import Keeper
from potluck.run.lab import Crew, free_address
from potluck.run.live import Door, serve
from potluck.run.setup import Setup
from potluck.worlds.live.security.gate import Gate
from potluck.worlds.live.session import Place

__all__ = ["measure", "predict"]

_MUSTER_S = 300.0  # for processes to start, on a machine that is busy with others


def measure(tables: Mapping[str, Any], *, act_out: bool) -> list[float]:
    """Seconds of every round but the first; with the fleet's links and speeds acted out, or as fast as it goes."""
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        job = make(tables)
        keeper = Keeper.fresh(job, Path(folder) / "run", lambda keeper, now: ends.append(time.perf_counter()), _never)
        result = _lead(job, keeper, act_out)
    if result.status != "done":
        raise RuntimeError(f"the live run ended early: {result.reason}")
    return _gaps(ends)


def _lead(job: Job, keeper: Keeper, act_out: bool) -> potluck.Result:
    assert keeper.folder is not None
    gate = Gate.open(keeper.folder, "bench", [device.name for device in job.fleet.members], None)
    address = free_address()
    with Crew(job, address, gate, None) as crew:
        place = Place(listen=(address,), lease=float(job.fleet.lease))
        door = Door(place, gate, _MUSTER_S, act_out=act_out, begun=crew.follow)
        return serve(Setup.of(job, None, None), keeper, door)


def predict(tables: Mapping[str, Any]) -> list[float]:
    """The same in virtual time, without the mathematics."""
    ends: list[float] = []
    job = make(tables)
    samples = min(len(shard) for shard in Setup.of(job, None, None).shards.values())
    ghost = make({**tables, "timing_only": True, "samples": samples})
    potluck.simulate(ghost, watch=lambda keeper, now: ends.append(now))
    return _gaps(ends)


def _gaps(ends: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(ends)]


def _never() -> bool:
    return False
