"""Runs a pipeline live on this machine and kills its workers (SIGKILL) one after another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import potluck
from benchmarks.pipeline.pipeline_trial import PipelineTrial
from potluck.job import Job, make
from potluck.journal import read_journal
from potluck.run.live_run import LiveRun

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


class _Crashes(potluck.LiveObserver):
    """Kills one worker after another, each some batches after the last."""

    def __init__(self) -> None:
        self.killed_at: list[float] = []
        self._task: asyncio.Task[None] | None = None

    def on_begin(self, run: LiveRun) -> None:
        self._task = asyncio.ensure_future(self._kill_workers(run))

    async def _kill_workers(self, run: LiveRun) -> None:
        assert run.devices is not None
        assert run.node is not None
        for number, name in enumerate(WORKERS, 1):
            while run.store.progress.round < number * _BATCHES_BETWEEN_KILLS:
                await asyncio.sleep(0.005)
            self.killed_at.append(run.node.now())
            run.devices.kill_device(name)


def _run_with_crashes(job: Job, folder: Path) -> list[float]:
    """Run the job live; when each worker was killed."""
    crashes, options = _Crashes(), potluck.LabOptions(wait_s=_JOIN_TIMEOUT_S, play_faults=False)
    result = potluck.lab(job, folder=folder, options=options, observer=crashes)
    assert result.status == "done", result.reason
    assert len(crashes.killed_at) == len(WORKERS), "the run was over before all were killed"
    return crashes.killed_at
