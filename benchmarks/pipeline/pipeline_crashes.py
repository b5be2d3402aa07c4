"""Deaths on this machine: a pipeline of real processes, its workers killed (SIGKILL) one after another."""

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

_APART = 15  # batches
_BATCHES = 80
_FORMING_S = 120.0
WORKERS = ("device-2", "device-1", "device-3")


def measure_live_crashes() -> dict[str, Any]:
    """Seconds from each kill to its notice, to the new layout, and to the next batch that this one has committed."""
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
    """Four devices that are slow on paper, so that they do not get in each other's way on few cores."""
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
    """Live through it; when each worker was killed."""
    killed: list[float] = []
    keeper = RunStore.create_run(job, folder, None, lambda: False)
    gate = AdmissionPolicy.for_run(folder, job_digest(job), [device.name for device in job.fleet.members], None)
    address, tasks = free_loopback_address(), list[asyncio.Task[None]]()
    place = Endpoint(listen=(address,), lease=float(job.fleet.lease), direct=True)
    with LabDevices(job, address, gate, None, crashes=False) as crew:

        def begun(node: Node) -> None:
            tasks.append(asyncio.ensure_future(_kill_workers(crew, node, keeper.progress, killed)))

        result = serve_run(
            build_setup(job, None, None),
            keeper,
            ServeOptions(place, gate, _FORMING_S, emulate_fleet=True, on_begin=begun),
        )
    assert result.status == "done", result.reason
    assert len(killed) == len(WORKERS), "the run was over before all were killed"
    return killed


async def _kill_workers(crew: LabDevices, node: Node, books: RunProgress, killed: list[float]) -> None:
    for number, name in enumerate(WORKERS, 1):
        while books.round < number * _APART:
            await asyncio.sleep(0.005)
        killed.append(node.now())
        crew.kill_device(name)
