"""Formats a schedule as a table of clock ticks and stages; every task takes one tick and starts as early as possible.

clock  stage 0  stage 1
    0  F0
    1  F1       F0
    2           B0
    3  B0       F1
    4           B1
    5  B1
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from potluck.planning.schedule.pipeline_schedules import StageTask, required_task

__all__ = ["clock_ticks", "format_schedule"]


def format_schedule(schedule: Iterable[StageTask]) -> str:
    """The schedule as text, without trailing blanks."""
    tasks = list(schedule)
    stages = 1 + max((task.stage for task in tasks), default=-1)
    cells = {(clock, task.stage): _task_label(task) for clock, task in clock_ticks(tasks)}
    ticks = 1 + max((clock for clock, _ in cells), default=-1)
    rows = [[f"stage {stage}" for stage in range(stages)]]
    rows += [[cells.get((clock, stage), "") for stage in range(stages)] for clock in range(ticks)]
    names = ["clock", *map(str, range(ticks))]
    return "\n".join(_format_row(name, row) for name, row in zip(names, rows, strict=True))


def _format_row(name: str, row: Sequence[str]) -> str:
    return "  ".join([name.rjust(5), *(cell.ljust(7) for cell in row)]).rstrip()


def clock_ticks(schedule: Iterable[StageTask]) -> Iterator[tuple[int, StageTask]]:
    """Each task with the tick in which it runs; every stage keeps the schedule's order."""
    tasks = list(schedule)
    stages = 1 + max((task.stage for task in tasks), default=-1)
    free = [0] * stages
    ended: dict[StageTask, int] = {}
    for task in tasks:
        need = required_task(task, stages)
        clock = max(free[task.stage], ended[need] if need else 0)
        free[task.stage] = ended[task] = clock + 1
        yield clock, task


def _task_label(task: StageTask) -> str:
    return f"{task.kind[0].upper()}{task.batch}"
