"""One exploration on its way: look, keep the best, train the best again, compare with one rate for all sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from potluck.explore.search import evolve, uniform_rates
from potluck.explore.settings import Exploration
from potluck.explore.shelf import Shelf
from potluck.explore.trial import Counts, Question
from potluck.explore.workers import Asker, Desk
from potluck.model.submodels import Width
from potluck.planning.pareto import ParetoTable, front, hypervolume

__all__ = ["Expedition", "Findings", "Progress", "spearman"]

BEYOND_FULL = 1.0001  # the corner of the hypervolume, so that the whole model counts too


class Progress(NamedTuple):
    """Told after every evaluation that was not known: what was asked and answered, how many so far, the generation."""

    question: Question
    answer: float
    done: int
    generation: int


class Findings(NamedTuple):
    """The table and what it is worth against one rate for all sets."""

    table: ParetoTable
    uniform: ParetoTable
    hypervolume: float
    uniform_hypervolume: float
    evaluations: int
    correlation: float | None  # rank correlation of the proxy with training, where there is a proxy


class Expedition:
    """Asks for evaluations and makes the table of them."""

    def __init__(
        self,
        name: str,
        width: Width,
        settings: Exploration,
        ask: Asker,
        shelf: Shelf,
        progress: Callable[[Progress], None],
    ) -> None:
        self._name = name
        self._width = width
        self._settings = settings
        self._desk = Desk(ask, shelf, self._seen)
        self._shelf = shelf
        self._progress = progress
        self._generation = 0
        self._done = 0

    def findings(self) -> Findings:
        """Search and compare; what is in the table is trained `repeats` times, the uniform vectors too."""
        plainly = uniform_rates(self._settings, len(self._width.sets))
        uniform = [self._width.counts(rates, self._settings.grid) for rates in plainly]
        best = self._best(evolve(self._width, self._settings, self._costs, self._judge, self._next_generation))
        everything = list(dict.fromkeys([*best, *uniform]))
        table, plain = self._table(everything), self._table(uniform)
        worst = min(0.0, *(entry.gain for entry in (*table.entries, *plain.entries)))
        areas = (self._area(table, worst), self._area(plain, worst))
        return Findings(table, plain, *areas, len(self._shelf), self._correlation(everything))

    def _judge(self, counts: Sequence[Counts]) -> list[float]:
        judge = "training" if self._settings.proxy == "none" else self._settings.proxy
        return self._desk.answers([Question(judge, one, 0) for one in counts])

    def _costs(self, counts: Sequence[Counts]) -> list[float]:
        """As shares of what the whole model costs."""
        if self._settings.cost == "macs":
            return [self._width.share(one) for one in counts]
        whole, *each = self._desk.answers([Question("seconds", one, 0) for one in (self._width.full, *counts)])
        return [min(seconds / whole, 1.0) for seconds in each]

    def _best(self, seen: Sequence[Counts]) -> list[Counts]:
        """The front as the search has seen it."""
        return [seen[index] for index in front(self._costs(seen), self._judge(seen))]

    def _table(self, counts: Sequence[Counts]) -> ParetoTable:
        """Costs in MACs; those measured as time are so many of the whole model's."""
        rows = [
            (max(1, round(share * self._width.full_macs)), gain, self._rates(one))
            for one, share, gain in zip(counts, self._costs(counts), self._trained(counts), strict=True)
        ]
        sets = [part.name for part in self._width.sets]
        return ParetoTable.of(self._name, sets, self._width.full_macs, rows, self._settings.cost)

    def _trained(self, counts: Sequence[Counts]) -> list[float]:
        """The mean gain of several short trainings."""
        repeats = self._settings.repeats
        answers = self._desk.answers([Question("training", one, again) for one in counts for again in range(repeats)])
        return [float(mean) for mean in np.reshape(answers, (len(counts), repeats)).mean(1)]

    def _rates(self, counts: Counts) -> list[float]:
        return [1 - kept / part.size for kept, part in zip(counts, self._width.sets, strict=True)]

    def _area(self, table: ParetoTable, worst: float) -> float:
        return hypervolume(table.shares, [entry.gain for entry in table.entries], BEYOND_FULL, worst)

    def _correlation(self, counts: Sequence[Counts]) -> float | None:
        if self._settings.proxy == "none" or len(counts) < 3:
            return None
        return spearman(self._judge(counts), self._trained(counts))

    def _next_generation(self, generation: int) -> None:
        self._generation = generation

    def _seen(self, question: Question, answer: float) -> None:
        self._done += 1
        self._progress(Progress(question, answer, self._done, self._generation))


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation; ties share their mean rank."""
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: Sequence[float]) -> list[float]:
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts - 1) / 2
    return [float(rank) for rank in means[inverse]]
