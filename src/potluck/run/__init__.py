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
from potluck.job import Job, load, make
from potluck.loops.node import Node
from potluck.loops.progress import Ending
from potluck.run.cutting import is_open
from potluck.run.gathering import gathered
from potluck.run.keeper import Keeper, Watch
from potluck.run.pipeline import PipelineSetup
from potluck.run.setup import Setup
from potluck.task import Task
from potluck.worlds.simulated import clock
from potluck.worlds.simulated.pool import Pool
from potluck.worlds.simulated.world import DeviceError, World

__all__ = ["Result", "resume", "set_up", "settled", "simulate"]


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
    job = _job(job)
    setup = set_up(job, task, data)
    return _run(setup, Keeper.fresh(setup.job, Path(folder) if folder is not None else None, watch, stopping), threads)


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
    job = load(folder / "job.toml", overrides)
    setup = set_up(job, task, data, elsewhere=True)
    return _run(setup, Keeper.again(job, folder, watch, stopping), threads)


def _job(job: Job | Mapping[str, Any] | str | Path) -> Job:
    if isinstance(job, Job):
        return job
    return make(job) if isinstance(job, Mapping) else load(Path(job))


def set_up(job: Job, task: Task | None, data: Path | None, elsewhere: bool = False) -> Setup | PipelineSetup:
    """All that a run needs; `elsewhere`: its numbers come from a checkpoint or from the coordinator."""
    kind = Setup if job.pipeline is None else PipelineSetup
    return kind.of(job, task, data, elsewhere)


def settled(job: Job, data: Path | None) -> Job:
    """The job with nothing left open, as all who take part in it must have it."""
    return set_up(job, None, data).job if is_open(job) else job


def _run(setup: Setup | PipelineSetup, keeper: Keeper, threads: int | None) -> Result:
    """Bring everything together and let it run."""
    began = time.perf_counter()
    if keeper.tensors is not None:
        setup.server.restore(keeper.tensors)
    keeper.attach(setup.server.tensors)
    with _one_thread_each():
        ending = _live(setup, keeper, threads)
    module, carver = setup.finished(), setup.carver if isinstance(setup, Setup) else None
    summary = keeper.finish(ending, time.perf_counter() - began, gathered(module, carver, keeper.folder))
    return Result(ending.status, ending.reason, summary, keeper.folder, module)


def _live(setup: Setup | PipelineSetup, keeper: Keeper, threads: int | None) -> Ending:
    job = setup.job
    pool = Pool(_threads(threads, job), prepare=lambda: torch.set_num_threads(1))
    world = World(job.fleet, job.seed, keeper.journal, pool)

    def coordinate(node: Node) -> Coroutine[Any, Any, Ending]:
        return setup.coordinator(node, keeper, keeper.books).main()

    def take_part(node: Node) -> Coroutine[Any, Any, None]:
        return setup.device_loop(node, keeper.belongings).main()

    try:
        ending: Ending = clock.run(world.run(coordinate, take_part, keeper.start))
    except DeviceError as error:
        keeper.keep_error("".join(traceback.format_exception(error)))
        ending = Ending("failed", str(error))
    finally:
        pool.close()
    return ending


class _one_thread_each:  # noqa: N801 (used like a function)
    """Each of our threads computes on one core, so that results do not depend on how many there are."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self._before)


def _threads(threads: int | None, job: Job) -> int:
    """Threads beside the main one: by default as many as make use of every core."""
    if job.timing_only:
        return 0
    return threads if threads is not None else max(0, (os.cpu_count() or 1) - 1)
