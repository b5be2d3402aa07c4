"""The schedules as pure generators of tasks, in an order in which each task follows all that it needs."""

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
    """Asynchronous 1F1B; the last stage, whose window is 1, does a batch's forward and backward in one go."""
    widths = published_windows(stages) if windows is None else tuple(windows)
    assert len(widths) == stages
    assert widths[-1] == 1, "the last stage turns each batch at once"
    assert widths == tuple(sorted(widths, reverse=True)), "a later stage cannot have more batches in flight"
    progress = [StageProgress.at_start(width, start + batches, start) for width in widths]
    while tick := _due_tasks(progress):
        for task in tick:
            progress[task.stage] = progress[task.stage].after_task(task.kind)
            yield task


def gpipe_schedule(stages: int, batches: int, micro_batches: int = 1) -> Iterator[StageTask]:
    """All forwards of a batch's parts, then their backwards in reverse, then a flush.

    Parts are numbered on through the batches. With one part each this is a model spread over devices that take turns.
    """
    for batch in range(batches):
        parts = range(batch * micro_batches, (batch + 1) * micro_batches)
        yield from _diagonal_wave(stages, parts, "forward")
        yield from _diagonal_wave(stages, parts[::-1], "backward")


def required_task(task: StageTask, stages: int) -> StageTask | None:
    """The task whose result this one waits for; None for what begins with the data."""
    if task.kind == "forward":
        return task._replace(stage=task.stage - 1) if task.stage else None
    if task.stage == stages - 1:
        return task._replace(kind="forward")
    return task._replace(stage=task.stage + 1)


def _due_tasks(progress: Sequence[StageProgress]) -> list[StageTask]:
    """One tick: what each stage can do with what was done before it."""
    tasks = [StageTask(stage, *next_task) for stage, at in enumerate(progress) if (next_task := due_task(at))]
    return [task for task in tasks if (need := required_task(task, len(progress))) is None or _is_done(need, progress)]


def _is_done(task: StageTask, progress: Sequence[StageProgress]) -> bool:
    at = progress[task.stage]
    return task.batch <= (at.forward if task.kind == "forward" else at.backward)


def _diagonal_wave(stages: int, parts: Sequence[int], kind: Kind) -> Iterator[StageTask]:
    """Diagonal by diagonal: tick k holds part p on the stage that it reaches k − p ticks after it set out."""
    for tick in range(len(parts) + stages - 1):
        for place, part in enumerate(parts):
            if 0 <= (hops := tick - place) < stages:
                yield StageTask(hops if kind == "forward" else stages - 1 - hops, kind, part)
