"""Trials on several cores: processes that each build the trial once and answer questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from pathlib import Path

import torch

from potluck.explore.candidate_evaluator import CandidateEvaluator, EvaluationRequest, Weights
from potluck.explore.evaluation_cache import EvaluationCache
from potluck.explore.settings import Exploration
from potluck.task import TaskSettings, build_task
from potluck.worker_pool import worker_pool

__all__ = ["Asker", "CachedEvaluator", "evaluate_in_process", "evaluation_processes"]

Asker = Callable[[Iterable[EvaluationRequest]], Iterator[tuple[EvaluationRequest, float]]]

_trial: CandidateEvaluator | None = None  # a worker process's own


def evaluate_in_process(trial: CandidateEvaluator) -> Asker:
    """Ask in this process."""
    return lambda questions: ((question, trial.evaluate_candidate(question)) for question in questions)


@contextmanager
def evaluation_processes(
    count: int, task: TaskSettings | str, root: Path | None, settings: Exploration, weights: Weights
) -> Iterator[Asker]:
    """Ask in other processes; the first answers come first."""
    with worker_pool(count, _init_worker, (task, root, settings, weights)) as pool:

        def ask(questions: Iterable[EvaluationRequest]) -> Iterator[tuple[EvaluationRequest, float]]:
            asked: dict[Future[float], EvaluationRequest] = {
                pool.submit(_evaluate_request, question): question for question in questions
            }
            for done in as_completed(asked):
                yield asked[done], done.result()

        yield ask


class CachedEvaluator:
    """Answers questions from the shelf, and asks what is not on it yet."""

    def __init__(self, ask: Asker, shelf: EvaluationCache, seen: Callable[[EvaluationRequest, float], None]) -> None:
        self._evaluate = ask
        self._cache = shelf
        self._on_score = seen

    def evaluate_all(self, questions: Sequence[EvaluationRequest]) -> list[float]:
        """In the order of the questions; every new answer is kept at once."""
        fresh = [question for question in dict.fromkeys(questions) if self._cache.find_score(question) is None]
        for question, answer in self._evaluate(fresh):
            self._cache.store_score(question, answer)
            self._on_score(question, answer)
        return [answer for answer in map(self._cache.find_score, questions) if answer is not None]


def _init_worker(task: TaskSettings | str, root: Path | None, settings: Exploration, weights: Weights) -> None:
    global _trial
    torch.set_num_threads(1)
    _trial = CandidateEvaluator(build_task(task, root), settings, weights)


def _evaluate_request(question: EvaluationRequest) -> float:
    assert _trial is not None, "the process has not begun"
    return _trial.evaluate_candidate(question)
