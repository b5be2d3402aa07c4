"""The composition root: job → setup → loops → world → journal, checkpoints, summary."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from potluck.errors import RunError
from potluck.job import Job, load_job, make
from potluck.loops.node import Node
from potluck.loops.run_progress import RunOutcome
from potluck.run.class_group_cut import has_auto_settings
from potluck.run.final_model import save_final_model
from potluck.run.pipeline_setup import PipelineSetup
from potluck.run.rounds_setup import RoundsSetup
from potluck.run.run_store import RunStore, Watch
from potluck.task import Task
from potluck.worlds.simulated import virtual_clock
from potluck.worlds.simulated.compute_pool import ComputePool
from potluck.worlds.simulated.simulated_world import DeviceError, SimulatedWorld

__all__ = ["Result", "build_setup", "resolve_auto_settings", "resume", "simulate"]


@dataclass(frozen=True)
class Result:
    """How a run ended, what came of it, and the model."""

    status: str  # "done", "failed" or "interrupted"
    reason: str
    summary: dict[str, Any]
    folder: Path | None
    module: nn.Module | None

    @property
    def exit_code(self) -> int:
        return {"done": 0, "failed": 1, "interrupted": 130}[self.status]


def simulate(
    job: Job | Mapping[str, Any] | str | Path,
    *,
    task: Task | None = None,
    folder: Path | str | None = None,
    data: Path | None = None,
    threads: int | None = None,
    watch: Watch | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Result:
    """Run a job in the simulated world.

    `task` stands in for the job's own; `folder` is where the run is kept (nowhere by default); `threads` are real
    threads beside this one (all cores by default); `watch` is told of every round; `stopping` is asked all the time.
    """
    job = _load_given_job(job)
    setup = build_setup(job, task, data)
    return _execute_run(
        setup, RunStore.create_run(setup.job, Path(folder) if folder is not None else None, watch, stopping), threads
    )


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
    """Take a run up from its latest checkpoint; the outcome is that of the run that was never stopped."""
    folder = Path(folder)
    if not (folder / "job.toml").exists():
        raise RunError(f"{folder} is not the folder of a run: it has no job.toml")
    job = load_job(folder / "job.toml", overrides, resolved=True)
    setup = build_setup(job, task, data, elsewhere=True)
    return _execute_run(setup, RunStore.reopen_run(job, folder, watch, stopping), threads)


def _load_given_job(job: Job | Mapping[str, Any] | str | Path) -> Job:
    if isinstance(job, Job):
        return job
    return make(job) if isinstance(job, Mapping) else load_job(Path(job))


def build_setup(job: Job, task: Task | None, data: Path | None, elsewhere: bool = False) -> RoundsSetup | PipelineSetup:
    """All that a run needs; `elsewhere`: its numbers come from a checkpoint or from the coordinator."""
    kind = RoundsSetup if job.pipeline is None else PipelineSetup
    return kind.from_job(job, task, data, elsewhere)


def resolve_auto_settings(job: Job, data: Path | None) -> Job:
    """The job with nothing left open, as all who take part in it must have it."""
    return build_setup(job, None, data).job if has_auto_settings(job) else job


def _execute_run(setup: RoundsSetup | PipelineSetup, keeper: RunStore, threads: int | None) -> Result:
    """Bring everything together and let it run."""
    began = time.perf_counter()
    if keeper.tensors is not None:
        setup.server.restore(keeper.tensors)
    keeper.attach_tensors(setup.server.tensors)
    with _single_threaded_torch():
        ending = _simulate_run(setup, keeper, threads)
    module, carver = setup.trained_module(), setup.extractor if isinstance(setup, RoundsSetup) else None
    summary = keeper.finish_run(ending, time.perf_counter() - began, save_final_model(module, carver, keeper.folder))
    return Result(ending.status, ending.reason, summary, keeper.folder, module)


def _simulate_run(setup: RoundsSetup | PipelineSetup, keeper: RunStore, threads: int | None) -> RunOutcome:
    job = setup.job
    pool = ComputePool(_thread_count(threads, job), prepare=lambda: torch.set_num_threads(1))
    world = SimulatedWorld(job.fleet, job.seed, keeper.journal, pool)

    def start_coordinator(node: Node) -> Coroutine[Any, Any, RunOutcome]:
        return setup.build_coordinator(node, keeper, keeper.progress).main()

    def start_device_loop(node: Node) -> Coroutine[Any, Any, None]:
        return setup.build_device_loop(node, keeper.device_states).main()

    try:
        ending: RunOutcome = virtual_clock.run_virtual_time(
            world.run(start_coordinator, start_device_loop, keeper.start_s)
        )
    except DeviceError as error:
        keeper.write_error("".join(traceback.format_exception(error)))
        ending = RunOutcome("failed", str(error))
    finally:
        pool.close()
    return ending


class _single_threaded_torch:  # noqa: N801
    """Each of our threads computes on one core, so that results do not depend on how many there are."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self._before)


def _thread_count(threads: int | None, job: Job) -> int:
    """Threads beside the main one: by default as many as make use of every core."""
    if job.timing_only:
        return 0
    return threads if threads is not None else max(0, (os.cpu_count() or 1) - 1)
