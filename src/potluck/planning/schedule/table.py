"""A schedule as a table of clock ticks and stages, each task one tick long and begun as early as it can be.

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

from potluck.planning.schedule.orders import Task, needed

__all__ = ["clocks", "table"]


def table(schedule: Iterable[Task]) -> str:
    """The schedule as text, without trailing blanks."""
    tasks = list(schedule)
    stages = 1 + max((task.stage for task in tasks), default=-1)
    cells = {(clock, task.stage): _label(task) for clock, task in clocks(tasks)}
    ticks = 1 + max((clock for clock, _ in cells), default=-1)
    rows = [[f"stage {stage}" for stage in range(stages)]]
    rows += [[cells.get((clock, stage), "") for stage in range(stages)] for clock in range(ticks)]
    names = ["clock", *map(str, range(ticks))]
    return "\n".join(_line(name, row) for name, row in zip(names, rows, strict=True))


def _line(name: str, row: Sequence[str]) -> str:
    return "  ".join([name.rjust(5), *(cell.ljust(7) for cell in row)]).rstrip()


def clocks(schedule: Iterable[Task]) -> Iterator[tuple[int, Task]]:
    """Each task with the tick in which it runs; stages keep the order in which the schedule names their tasks."""
    tasks = list(schedule)
    stages = 1 + max((task.stage for task in tasks), default=-1)
    free = [0] * stages
    ended: dict[Task, int] = {}
    for task in tasks:
        need = needed(task, stages)
        clock = max(free[task.stage], ended[need] if need else 0)
        free[task.stage] = ended[task] = clock + 1
        yield clock, task


def _label(task: Task) -> str:
    return f"{task.kind[0].upper()}{task.batch}"
