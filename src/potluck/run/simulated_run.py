"""Runs a job in the simulated world, from the start or from its latest checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import torch

from potluck.job import Job
from potluck.loops.node import Node
from potluck.loops.run_progress import RunOutcome
from potluck.run.argument_checks import check_folder, check_threads
from potluck.run.prepared_job import GivenJob, PreparedJob, prepare_job
from potluck.run.run_opening import ResumeRequest, create_run, reopen_run
from potluck.run.run_result import Result, run_to_end
from potluck.run.run_store import RunStore, Watch
from potluck.task import Task
from potluck.worlds.simulated import virtual_clock
from potluck.worlds.simulated.compute_pool import ComputePool
from potluck.worlds.simulated.simulated_world import SimulatedWorld

__all__ = ["resume_simulated", "run_simulated_world", "simulate"]


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
    check_threads(threads)
    folder = check_folder("folder", folder)
    prepared = prepare_job(job, task, data)
    with create_run(prepared, folder, watch, stopping) as store:
        return run_to_end(prepared, store, partial(run_simulated_world, prepared, store, threads))


def resume_simulated(
    request: ResumeRequest, threads: int | None, watch: Watch | None, stopping: Callable[[], bool]
) -> Result:
    """Resume a simulated run; the result is that of a run that was never interrupted."""
    check_threads(threads)
    with reopen_run(request, watch, stopping) as (prepared, store):
        return run_to_end(prepared, store, partial(run_simulated_world, prepared, store, threads))


def run_simulated_world(prepared: PreparedJob, store: RunStore, threads: int | None) -> RunOutcome:
    """Run a prepared job on simulated devices, links and time."""
    job = prepared.job
    prepared.check_device("this machine")
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
