"""Searches for the dropout rates that are worth their cost at each budget; the result is a Pareto table for jobs.

common weights ─▶ uniform rates ─▶ NSGA-II (scored by training or a proxy) ─▶ front, trained again ─▶ table
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from potluck.explore.candidate_evaluator import CandidateEvaluator
from potluck.explore.evaluation_cache import EvaluationCache, settings_digest
from potluck.explore.evaluation_workers import (
    CachedEvaluator,
    EvaluateRequests,
    evaluate_in_process,
    evaluation_processes,
)
from potluck.explore.exploration_run import (
    ExplorationProgress,
    ExplorationResult,
    ExplorationRun,
    ProfiledCost,
    slowest_profile,
)
from potluck.explore.settings import Exploration, settings_from_job
from potluck.fleet.compute_profile import ComputeProfile
from potluck.settings import encode_settings
from potluck.task import Task, TaskSettings, build_task

__all__ = ["Exploration", "ExplorationProgress", "ExplorationResult", "explore", "settings_from_job", "slowest_profile"]


def explore(
    task: TaskSettings | str | Task,
    settings: Exploration,
    *,
    root: Path | None = None,
    cache: Path | None = None,
    profile: ComputeProfile | None = None,
    start: Path | None = None,
    progress: Callable[[ExplorationProgress], None] = lambda _: None,
) -> ExplorationResult:
    """Search for a Pareto table. `cache` is a file of all scores, with which an interrupted search can continue.

    With a `profile`, its layer times weigh the MACs of candidates. `start` is a run's folder or a file of weights, from
    which the common weights are trained; by default they are those of a new model.
    """
    built = task if isinstance(task, Task) else build_task(task, root)
    evaluator = CandidateEvaluator(built, settings, start=start)
    named = built.name if isinstance(task, Task) else encode_settings(task)
    experiment = [named, settings.evaluation_settings, *([evaluator.weights_digest] if start is not None else [])]
    scores = EvaluationCache(cache, settings_digest(*experiment))
    measured = None if profile is None else ProfiledCost(evaluator.slimmable, profile)
    with _open_evaluator(task, root, settings, evaluator) as evaluate:
        return ExplorationRun(
            built.name, evaluator.slimmable, settings, CachedEvaluator(evaluate, scores), progress, measured
        ).run_search()


@contextmanager
def _open_evaluator(
    task: TaskSettings | str | Task, root: Path | None, settings: Exploration, evaluator: CandidateEvaluator
) -> Iterator[EvaluateRequests]:
    if settings.processes == 0 or isinstance(task, Task):  # a user's own objects may not be picklable
        yield evaluate_in_process(evaluator)
    else:
        with evaluation_processes(settings.processes, task, root, settings, evaluator.weights) as evaluate:
            yield evaluate
