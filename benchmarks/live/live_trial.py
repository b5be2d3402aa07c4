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
from potluck.run.lab import LabDevices, free_loopback_address
from potluck.run.live_run import ServeOptions, serve_run
from potluck.run.rounds_setup import RoundsSetup
from potluck.run.run_store import RunStore
from potluck.worlds.live.security.admission_policy import AdmissionPolicy
from potluck.worlds.live.zenoh_session import Endpoint

__all__ = ["measure_rounds", "predict_rounds"]

_MUSTER_S = 300.0  # for processes to start, on a machine that is busy with others


def measure_rounds(tables: Mapping[str, Any], *, act_out: bool) -> list[float]:
    """Seconds of every round but the first; with the fleet's links and speeds acted out, or as fast as it goes."""
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        job = make(tables)
        keeper = RunStore.create_run(
            job, Path(folder) / "run", lambda keeper, now: ends.append(time.perf_counter()), _never_stop
        )
        result = _serve_lab(job, keeper, act_out)
    if result.status != "done":
        raise RuntimeError(f"the live run ended early: {result.reason}")
    return _round_durations(ends)


def _serve_lab(job: Job, keeper: RunStore, act_out: bool) -> potluck.Result:
    assert keeper.folder is not None
    gate = AdmissionPolicy.for_run(keeper.folder, "bench", [device.name for device in job.fleet.members], None)
    address = free_loopback_address()
    with LabDevices(job, address, gate, None) as crew:
        place = Endpoint(listen=(address,), lease=float(job.fleet.lease))
        door = ServeOptions(place, gate, _MUSTER_S, emulate_fleet=act_out, on_begin=crew.start_fault_script)
        return serve_run(RoundsSetup.from_job(job, None, None), keeper, door)


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


def _never_stop() -> bool:
    return False
