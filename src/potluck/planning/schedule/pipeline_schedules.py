"""Pipeline schedules as pure generators of tasks; each task comes after all tasks that it depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from potluck.planning.schedule.in_flight_windows import published_windows
from potluck.planning.schedule.stage_rules import Kind, StageProgress, due_task

__all__ = ["StageTask", "gpipe_schedule", "one_f_one_b_schedule", "required_task"]


class StageTask(NamedTuple):
    """One stage's work on one batch."""

    stage: int
    kind: Kind
    batch: int


def one_f_one_b_schedule(
    stages: int, batches: int, *, start: int = 0, windows: Sequence[int] | None = None
) -> Iterator[StageTask]:
    """Asynchronous 1F1B; the last stage, whose window is 1, runs a batch's backward right after its forward."""
    windows_of = published_windows(stages) if windows is None else tuple(windows)
    assert len(windows_of) == stages
    assert windows_of[-1] == 1, "the last stage has one batch in flight"
    assert windows_of == tuple(sorted(windows_of, reverse=True)), "a later stage cannot have more batches in flight"
    progress = [StageProgress.at_start(window, start + batches, start) for window in windows_of]
    while tick := _due_tasks(progress):
        for task in tick:
            progress[task.stage] = progress[task.stage].after_task(task.kind)
            yield task


def gpipe_schedule(stages: int, batches: int, micro_batches: int = 1) -> Iterator[StageTask]:
    """All forwards of a batch's micro-batches, then their backwards in reverse, then a flush.

    Micro-batches are numbered across batches. With one per batch this is plain model parallelism.
    """
    for batch in range(batches):
        micro_batch_numbers = range(batch * micro_batches, (batch + 1) * micro_batches)
        yield from _diagonal_wave(stages, micro_batch_numbers, "forward")
        yield from _diagonal_wave(stages, micro_batch_numbers[::-1], "backward")


def required_task(task: StageTask, stages: int) -> StageTask | None:
    """The task whose result this one needs; None if it only needs the data."""
    if task.kind == "forward":
        return task._replace(stage=task.stage - 1) if task.stage else None
    if task.stage == stages - 1:
        return task._replace(kind="forward")
    return task._replace(stage=task.stage + 1)


def _due_tasks(progress: Sequence[StageProgress]) -> list[StageTask]:
    """One tick: the tasks that each stage can run with the results so far."""
    tasks = [StageTask(stage, *next_task) for stage, at in enumerate(progress) if (next_task := due_task(at))]
    return [task for task in tasks if (need := required_task(task, len(progress))) is None or _is_done(need, progress)]


def _is_done(task: StageTask, progress: Sequence[StageProgress]) -> bool:
    at = progress[task.stage]
    return task.batch <= (at.forward if task.kind == "forward" else at.backward)


def _diagonal_wave(stages: int, micro_batch_numbers: Sequence[int], kind: Kind) -> Iterator[StageTask]:
    """Diagonal by diagonal: in tick k the p-th micro-batch is on the stage that it reaches after k − p ticks."""
    for tick in range(len(micro_batch_numbers) + stages - 1):
        for position, number in enumerate(micro_batch_numbers):
            if 0 <= (hops := tick - position) < stages:
                yield StageTask(hops if kind == "forward" else stages - 1 - hops, kind, number)
