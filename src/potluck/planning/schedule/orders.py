"""The schedules as pure generators of tasks, in an order in which each task follows all that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from potluck.planning.schedule.gate import Kind, Progress, due
from potluck.planning.schedule.windows import published_windows

__all__ = ["Task", "gpipe", "needed", "one_f_one_b"]


class Task(NamedTuple):
    """One stage's work on one batch."""

    stage: int
    kind: Kind
    batch: int


def one_f_one_b(stages: int, batches: int, *, start: int = 0, windows: Sequence[int] | None = None) -> Iterator[Task]:
    """Asynchronous 1F1B; the last stage, whose window is 1, does a batch's forward and backward in one go."""
    widths = published_windows(stages) if windows is None else tuple(windows)
    assert len(widths) == stages
    assert widths[-1] == 1, "the last stage turns each batch at once"
    assert widths == tuple(sorted(widths, reverse=True)), "a later stage cannot have more batches in flight"
    progress = [Progress.fresh(width, start + batches, start) for width in widths]
    while tick := _due_now(progress):
        for task in tick:
            progress[task.stage] = progress[task.stage].after(task.kind)
            yield task


def gpipe(stages: int, batches: int, micro_batches: int = 1) -> Iterator[Task]:
    """All forwards of a batch's parts, then their backwards in reverse, then a flush.

    Parts are numbered on through the batches. With one part each this is a model spread over devices that take turns.
    """
    for batch in range(batches):
        parts = range(batch * micro_batches, (batch + 1) * micro_batches)
        yield from _wave(stages, parts, "forward")
        yield from _wave(stages, parts[::-1], "backward")


def needed(task: Task, stages: int) -> Task | None:
    """The task whose result this one waits for; None for what begins with the data."""
    if task.kind == "forward":
        return task._replace(stage=task.stage - 1) if task.stage else None
    if task.stage == stages - 1:
        return task._replace(kind="forward")
    return task._replace(stage=task.stage + 1)


def _due_now(progress: Sequence[Progress]) -> list[Task]:
    """One tick: what each stage can do with what was done before it."""
    tasks = [Task(stage, *next_task) for stage, at in enumerate(progress) if (next_task := due(at))]
    return [task for task in tasks if (need := needed(task, len(progress))) is None or _is_done(need, progress)]


def _is_done(task: Task, progress: Sequence[Progress]) -> bool:
    at = progress[task.stage]
    return task.batch <= (at.forward if task.kind == "forward" else at.backward)


def _wave(stages: int, parts: Sequence[int], kind: Kind) -> Iterator[Task]:
    """Diagonal by diagonal: tick k holds part p on the stage that it reaches k − p ticks after it set out."""
    for tick in range(len(parts) + stages - 1):
        for place, part in enumerate(parts):
            if 0 <= (hops := tick - place) < stages:
                yield Task(hops if kind == "forward" else stages - 1 - hops, kind, part)
