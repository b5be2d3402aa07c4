"""Trials on several cores: processes that each build the trial once and answer questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import torch

from potluck.explore.settings import Exploration
from potluck.explore.shelf import Shelf
from potluck.explore.trial import Question, Trial, Weights
from potluck.task import TaskSettings, build

__all__ = ["Asker", "Desk", "here", "processes"]

Asker = Callable[[Iterable[Question]], Iterator[tuple[Question, float]]]

_trial: Trial | None = None  # a worker process's own


def here(trial: Trial) -> Asker:
    """Ask in this process."""
    return lambda questions: ((question, trial.answer(question)) for question in questions)


@contextmanager
def processes(
    count: int, task: TaskSettings | str, root: Path | None, settings: Exploration, weights: Weights
) -> Iterator[Asker]:
    """Ask in other processes; the first answers come first."""
    pool = ProcessPoolExecutor(
        count, mp_context=get_context("spawn"), initializer=_begin, initargs=(task, root, settings, weights)
    )

    def ask(questions: Iterable[Question]) -> Iterator[tuple[Question, float]]:
        asked: dict[Future[float], Question] = {pool.submit(_answer, question): question for question in questions}
        for done in as_completed(asked):
            yield asked[done], done.result()

    try:
        yield ask
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Desk:
    """Answers questions from the shelf, and asks what is not on it yet."""

    def __init__(self, ask: Asker, shelf: Shelf, seen: Callable[[Question, float], None]) -> None:
        self._ask = ask
        self._shelf = shelf
        self._seen = seen

    def answers(self, questions: Sequence[Question]) -> list[float]:
        """In the order of the questions; every new answer is kept at once."""
        fresh = [question for question in dict.fromkeys(questions) if self._shelf.find(question) is None]
        for question, answer in self._ask(fresh):
            self._shelf.put(question, answer)
            self._seen(question, answer)
        return [answer for answer in map(self._shelf.find, questions) if answer is not None]


def _begin(task: TaskSettings | str, root: Path | None, settings: Exploration, weights: Weights) -> None:
    global _trial
    torch.set_num_threads(1)
    _trial = Trial(build(task, root), settings, weights)


def _answer(question: Question) -> float:
    assert _trial is not None, "the process has not begun"
    return _trial.answer(question)
