"""Exploration: which filters to drop at which budget. The result is a table that jobs name.

common weights ─▶ uniform vectors ─▶ NSGA-II (trained, or judged by a proxy) ─▶ the front, trained again ─▶ table
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from potluck.explore.candidate_evaluator import CandidateEvaluator
from potluck.explore.evaluation_cache import EvaluationCache, settings_digest
from potluck.explore.evaluation_workers import Asker, evaluate_in_process, evaluation_processes
from potluck.explore.exploration_run import ExplorationProgress, ExplorationResult, ExplorationRun
from potluck.explore.settings import Exploration, settings_from_job
from potluck.settings import encode_settings
from potluck.task import Task, TaskSettings, build_task

__all__ = ["Exploration", "ExplorationProgress", "ExplorationResult", "explore", "settings_from_job"]


def explore(
    task: TaskSettings | str | Task,
    settings: Exploration,
    *,
    root: Path | None = None,
    cache: Path | None = None,
    progress: Callable[[ExplorationProgress], None] = lambda _: None,
) -> ExplorationResult:
    """Search; `cache` is a file that keeps every evaluation, so that the same call goes on after a stop."""
    built = task if isinstance(task, Task) else build_task(task, root)
    trial = CandidateEvaluator(built, settings)
    named = built.name if isinstance(task, Task) else encode_settings(task)
    shelf = EvaluationCache(cache, settings_digest(named, settings.evaluation_settings))
    with _open_evaluator(task, root, settings, trial) as ask:
        return ExplorationRun(built.name, trial.slimmable, settings, ask, shelf, progress).run_search()


@contextmanager
def _open_evaluator(
    task: TaskSettings | str | Task, root: Path | None, settings: Exploration, trial: CandidateEvaluator
) -> Iterator[Asker]:
    if settings.processes == 0 or isinstance(task, Task):  # a user's own objects may not survive being sent
        yield evaluate_in_process(trial)
    else:
        with evaluation_processes(settings.processes, task, root, settings, trial.weights) as ask:
            yield ask
