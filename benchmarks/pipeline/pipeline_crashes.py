"""Runs a pipeline live on this machine and kills its workers (SIGKILL) one after another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.pipeline.pipeline_trial import PipelineTrial
from potluck.job import Job, make
from potluck.journal import read_journal
from potluck.loops.node import Node
from potluck.loops.run_progress import RunProgress
from potluck.run import build_setup
from potluck.run.lab import LabDevices, free_loopback_address
from potluck.run.live_run import ServeOptions, job_digest, serve_run
from potluck.run.run_store import RunStore
from potluck.worlds.live.security.admission_policy import AdmissionPolicy
from potluck.worlds.live.zenoh_session import Endpoint

__all__ = ["measure_live_crashes"]

_BATCHES_BETWEEN_KILLS = 15
_BATCHES = 80
_JOIN_TIMEOUT_S = 120.0
WORKERS = ("device-2", "device-1", "device-3")


def measure_live_crashes() -> dict[str, Any]:
    """Seconds from each kill to its detection, to the new layout, and to the first batch that this layout commits."""
    with TemporaryDirectory(prefix="potluck-bench-") as name:
        folder = Path(name)
        killed = _run_with_crashes(_crash_job(), folder)
        trial = PipelineTrial(list(read_journal(folder / "journal.jsonl")))
    return {
        "notice_s": [trial.notice_after(at) for at in killed],
        "flows_s": [trial.flow_resumes_after(at) for at in killed],
        "seconds": [trial.progress_after(at) for at in killed],
        "rolled_back": trial.rolled_back_batches(),
        "batches": len(trial.commit_times()),
    }


def _crash_job() -> Job:
    """Four devices with a low modelled speed, so that they do not compete for the cores."""
    return make(
        {
            "task": {
                "model": "mlp",
                "data": {"kind": "synthetic", "train": 400, "test": 50},
                "options": {"hidden": [32] * 7},
            },
            "recipe": "ftpipehd",
            "fleet": {"devices": [{"name": "device", "count": 1 + len(WORKERS), "flops": "5 MFLOP/s"}], "lease": "2 s"},
            "stop": {"rounds": _BATCHES},
            "evaluate": 0,
            "pipeline": {"batch": 16, "adaptation": {"every": 0, "on_change": False, "join": False}},
        }
    )


def _run_with_crashes(job: Job, folder: Path) -> list[float]:
    """Run the job and return when each worker was killed."""
    killed: list[float] = []
    store = RunStore.create_run(job, folder, None, lambda: False)
    admission = AdmissionPolicy.for_run(folder, job_digest(job), [device.name for device in job.fleet.members], None)
    address, tasks = free_loopback_address(), list[asyncio.Task[None]]()
    endpoint = Endpoint(listen=(address,), lease=float(job.fleet.lease), direct=True)
    with LabDevices(job, address, admission, None, crashes=False) as devices:

        def start_killing(node: Node) -> None:
            tasks.append(asyncio.ensure_future(_kill_workers(devices, node, store.progress, killed)))

        result = serve_run(
            build_setup(job, None, None),
            store,
            ServeOptions(endpoint, admission, _JOIN_TIMEOUT_S, emulate_fleet=True, on_begin=start_killing),
        )
    assert result.status == "done", result.reason
    assert len(killed) == len(WORKERS), "the run ended before all workers were killed"
    return killed


async def _kill_workers(devices: LabDevices, node: Node, progress: RunProgress, killed: list[float]) -> None:
    for number, name in enumerate(WORKERS, 1):
        while progress.round < number * _BATCHES_BETWEEN_KILLS:
            await asyncio.sleep(0.005)
        killed.append(node.now())
        devices.kill_device(name)
