"""One exploration on its way: look, keep the best, train the best again, compare with one rate for all sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from potluck.explore.candidate_evaluator import Counts, EvaluationRequest
from potluck.explore.evaluation_cache import EvaluationCache
from potluck.explore.evaluation_workers import Asker, CachedEvaluator
from potluck.explore.nsga2_search import evolve_counts, uniform_rates
from potluck.explore.settings import Exploration
from potluck.model.submodels import SlimmableModel
from potluck.planning.pareto_table import ParetoTable, hypervolume, pareto_front

__all__ = ["ExplorationProgress", "ExplorationResult", "ExplorationRun", "rank_correlation"]

BEYOND_FULL = 1.0001  # the corner of the hypervolume, so that the whole model counts too


class ExplorationProgress(NamedTuple):
    """Told after every evaluation that was not known: what was asked and answered, how many so far, the generation."""

    request: EvaluationRequest
    score: float
    done: int
    generation: int


class ExplorationResult(NamedTuple):
    """The table and what it is worth against one rate for all sets."""

    table: ParetoTable
    uniform: ParetoTable
    hypervolume: float
    uniform_hypervolume: float
    evaluations: int
    correlation: float | None  # rank correlation of the proxy with training, where there is a proxy


class ExplorationRun:
    """Asks for evaluations and makes the table of them."""

    def __init__(
        self,
        name: str,
        width: SlimmableModel,
        settings: Exploration,
        ask: Asker,
        shelf: EvaluationCache,
        progress: Callable[[ExplorationProgress], None],
    ) -> None:
        self._name = name
        self._slimmable = width
        self._settings = settings
        self._evaluator = CachedEvaluator(ask, shelf, self._report_progress)
        self._cache = shelf
        self._progress = progress
        self._generation = 0
        self._done = 0

    def run_search(self) -> ExplorationResult:
        """Search and compare; what is in the table is trained `repeats` times, the uniform vectors too."""
        plainly = uniform_rates(self._settings, len(self._slimmable.sets))
        uniform = [self._slimmable.kept_counts(rates, self._settings.grid) for rates in plainly]
        best = self._search_front(
            evolve_counts(
                self._slimmable, self._settings, self._cost_fractions, self._judge_candidates, self._next_generation
            )
        )
        everything = list(dict.fromkeys([*best, *uniform]))
        table, plain = self._pareto_table(everything), self._pareto_table(uniform)
        worst = min(0.0, *(entry.gain for entry in (*table.entries, *plain.entries)))
        areas = (self._front_hypervolume(table, worst), self._front_hypervolume(plain, worst))
        return ExplorationResult(table, plain, *areas, len(self._cache), self._proxy_correlation(everything))

    def _judge_candidates(self, counts: Sequence[Counts]) -> list[float]:
        judge = "training" if self._settings.proxy == "none" else self._settings.proxy
        return self._evaluator.evaluate_all([EvaluationRequest(judge, one, 0) for one in counts])

    def _cost_fractions(self, counts: Sequence[Counts]) -> list[float]:
        """As shares of what the whole model costs."""
        if self._settings.cost == "macs":
            return [self._slimmable.macs_fraction(one) for one in counts]
        whole, *each = self._evaluator.evaluate_all(
            [EvaluationRequest("seconds", one, 0) for one in (self._slimmable.full_counts, *counts)]
        )
        return [min(seconds / whole, 1.0) for seconds in each]

    def _search_front(self, seen: Sequence[Counts]) -> list[Counts]:
        """The front as the search has seen it."""
        return [seen[index] for index in pareto_front(self._cost_fractions(seen), self._judge_candidates(seen))]

    def _pareto_table(self, counts: Sequence[Counts]) -> ParetoTable:
        """Costs in MACs; those measured as time are so many of the whole model's."""
        rows = [
            (max(1, round(share * self._slimmable.full_macs)), gain, self._dropout_rates(one))
            for one, share, gain in zip(counts, self._cost_fractions(counts), self._mean_gains(counts), strict=True)
        ]
        sets = [part.name for part in self._slimmable.sets]
        return ParetoTable.from_trials(self._name, sets, self._slimmable.full_macs, rows, self._settings.cost)

    def _mean_gains(self, counts: Sequence[Counts]) -> list[float]:
        """The mean gain of several short trainings."""
        repeats = self._settings.repeats
        answers = self._evaluator.evaluate_all(
            [EvaluationRequest("training", one, again) for one in counts for again in range(repeats)]
        )
        return [float(mean) for mean in np.reshape(answers, (len(counts), repeats)).mean(1)]

    def _dropout_rates(self, counts: Counts) -> list[float]:
        return [1 - kept / part.size for kept, part in zip(counts, self._slimmable.sets, strict=True)]

    def _front_hypervolume(self, table: ParetoTable, worst: float) -> float:
        return hypervolume(table.cost_fractions, [entry.gain for entry in table.entries], BEYOND_FULL, worst)

    def _proxy_correlation(self, counts: Sequence[Counts]) -> float | None:
        if self._settings.proxy == "none" or len(counts) < 3:
            return None
        return rank_correlation(self._judge_candidates(counts), self._mean_gains(counts))

    def _next_generation(self, generation: int) -> None:
        self._generation = generation

    def _report_progress(self, question: EvaluationRequest, answer: float) -> None:
        self._done += 1
        self._progress(ExplorationProgress(question, answer, self._done, self._generation))


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation; ties share their mean rank."""
    return float(np.corrcoef(_mean_ranks(one), _mean_ranks(other))[0, 1])


def _mean_ranks(values: Sequence[float]) -> list[float]:
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts - 1) / 2
    return [float(rank) for rank in means[inverse]]
