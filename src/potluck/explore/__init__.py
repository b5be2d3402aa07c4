"""Exploration: which filters to drop at which budget. The result is a table that jobs name.

common weights ─▶ uniform vectors ─▶ NSGA-II (trained, or judged by a proxy) ─▶ the front, trained again ─▶ table
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from potluck.explore.expedition import Expedition, Findings, Progress
from potluck.explore.likeness import as_in
from potluck.explore.settings import Exploration
from potluck.explore.shelf import Shelf, digest
from potluck.explore.trial import Trial
from potluck.explore.workers import Asker, here, processes
from potluck.settings import encode
from potluck.task import Task, TaskSettings, build

__all__ = ["Exploration", "Findings", "Progress", "as_in", "explore"]


def explore(
    task: TaskSettings | str | Task,
    settings: Exploration,
    *,
    root: Path | None = None,
    cache: Path | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Findings:
    """Search; `cache` is a file that keeps every evaluation, so that the same call goes on after a stop."""
    built = task if isinstance(task, Task) else build(task, root)
    trial = Trial(built, settings)
    named = built.name if isinstance(task, Task) else encode(task)
    shelf = Shelf(cache, digest(named, settings.judged_by))
    with _asker(task, root, settings, trial) as ask:
        return Expedition(built.name, trial.width, settings, ask, shelf, progress).findings()


@contextmanager
def _asker(task: TaskSettings | str | Task, root: Path | None, settings: Exploration, trial: Trial) -> Iterator[Asker]:
    if settings.processes == 0 or isinstance(task, Task):  # a user's own objects may not survive being sent
        yield here(trial)
    else:
        with processes(settings.processes, task, root, settings, trial.weights) as ask:
            yield ask
