"""Scores candidates in worker processes, each of which builds the evaluator once."""

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

__all__ = ["CachedEvaluator", "EvaluateRequests", "evaluate_in_process", "evaluation_processes"]

EvaluateRequests = Callable[[Iterable[EvaluationRequest]], Iterator[tuple[EvaluationRequest, float]]]

_evaluator: CandidateEvaluator | None = None  # of this worker process


def evaluate_in_process(evaluator: CandidateEvaluator) -> EvaluateRequests:
    """Scores requests in this process."""
    return lambda requests: ((request, evaluator.evaluate_candidate(request)) for request in requests)


@contextmanager
def evaluation_processes(
    count: int, task: TaskSettings | str, root: Path | None, settings: Exploration, weights: Weights
) -> Iterator[EvaluateRequests]:
    """Scores requests in `count` worker processes, in order of completion."""
    with worker_pool(count, _init_worker, (task, root, settings, weights)) as pool:

        def evaluate(requests: Iterable[EvaluationRequest]) -> Iterator[tuple[EvaluationRequest, float]]:
            submitted: dict[Future[float], EvaluationRequest] = {
                pool.submit(_evaluate_request, request): request for request in requests
            }
            for done in as_completed(submitted):
                yield submitted[done], done.result()

        yield evaluate


class CachedEvaluator:
    """Looks scores up in the cache and evaluates the missing ones."""

    def __init__(self, evaluate: EvaluateRequests, cache: EvaluationCache) -> None:
        self._evaluate = evaluate
        self._cache = cache
        self.on_score: Callable[[EvaluationRequest, float], None] = lambda request, score: None  # of new evaluations

    @property
    def known_scores(self) -> int:
        return len(self._cache)

    def evaluate_all(self, requests: Sequence[EvaluationRequest]) -> list[float]:
        """The scores in the order of the requests; every new one is cached at once."""
        missing = [request for request in dict.fromkeys(requests) if self._cache.find_score(request) is None]
        for request, score in self._evaluate(missing):
            self._cache.store_score(request, score)
            self.on_score(request, score)
        return [score for score in map(self._cache.find_score, requests) if score is not None]


def _init_worker(task: TaskSettings | str, root: Path | None, settings: Exploration, weights: Weights) -> None:
    global _evaluator
    torch.set_num_threads(1)
    _evaluator = CandidateEvaluator(build_task(task, root), settings, weights)


def _evaluate_request(request: EvaluationRequest) -> float:
    assert _evaluator is not None, "the worker process was not initialised"
    return _evaluator.evaluate_candidate(request)
