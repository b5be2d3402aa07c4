"""Runs a job in the simulated world, from the start or from its latest checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from potluck.errors import RunError
from potluck.job import Job, load_job
from potluck.loops.node import Node
from potluck.loops.run_progress import RunOutcome
from potluck.run.prepared_job import GivenJob, PreparedJob, prepare_job
from potluck.run.run_result import Result, run_to_end
from potluck.run.run_store import RunStore, Watch
from potluck.task import Task
from potluck.worlds.simulated import virtual_clock
from potluck.worlds.simulated.compute_pool import ComputePool
from potluck.worlds.simulated.simulated_world import SimulatedWorld

__all__ = ["load_run_job", "resume", "run_simulated_world", "simulate"]


def simulate(
    job: GivenJob,
    *,
    task: Task | None = None,
    folder: Path | str | None = None,
    data: Path | None = None,
    threads: int | None = None,
    watch: Watch | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Result:
    """Run a job in the simulated world.

    `task` replaces the one that the job names; `folder` is where the run is saved (nowhere by default); `threads` are
    real threads beside this one (all cores by default); `watch` is called after every round; the run is interrupted
    once `stopping` returns True.
    """
    prepared = prepare_job(job, task, data)
    store = RunStore.create_run(prepared.job, Path(folder) if folder is not None else None, watch, stopping)
    return run_to_end(prepared, store, partial(run_simulated_world, prepared, store, threads))


def resume(
    folder: Path | str,
    *,
    overrides: Sequence[str] = (),
    task: Task | None = None,
    data: Path | None = None,
    threads: int | None = None,
    watch: Watch | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Result:
    """Resume a simulated run from its latest checkpoint; the result is that of a run that was never interrupted."""
    job = load_run_job(Path(folder), overrides)
    prepared = prepare_job(job, task, data, load_weights=False)
    store = RunStore.reopen_run(job, Path(folder), watch, stopping)
    return run_to_end(prepared, store, partial(run_simulated_world, prepared, store, threads))


def load_run_job(folder: Path, overrides: Sequence[str]) -> Job:
    """The job of a run's folder."""
    if not (folder / "job.toml").exists():
        raise RunError(f"{folder} is not the folder of a run: it has no job.toml")
    return load_job(folder / "job.toml", overrides, resolved=True)


def run_simulated_world(prepared: PreparedJob, store: RunStore, threads: int | None) -> RunOutcome:
    """Run a prepared job on simulated devices, links and time."""
    job = prepared.job
    pool = ComputePool(_thread_count(threads, job), prepare=lambda: torch.set_num_threads(1))
    world = SimulatedWorld(job.fleet, job.seed, store.journal, pool)

    def start_coordinator(node: Node) -> Coroutine[Any, Any, RunOutcome]:
        return prepared.build_coordinator(node, store, store.progress).main()

    def start_device(node: Node) -> Coroutine[Any, Any, None]:
        return prepared.build_device_loop(node, store.device_states).main()

    try:
        outcome: RunOutcome = virtual_clock.run_virtual_time(world.run(start_coordinator, start_device, store.start_s))
    finally:
        pool.close()
    return outcome


def _thread_count(threads: int | None, job: Job) -> int:
    """Threads beside the main one: by default as many as make use of every core."""
    if job.timing_only:
        return 0
    return threads if threads is not None else max(0, (os.cpu_count() or 1) - 1)
