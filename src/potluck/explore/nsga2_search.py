"""NSGA-II over dropout rates per channel set, minimising cost and maximising gain."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from potluck.errors import UserError
from potluck.explore.candidate_evaluator import Counts
from potluck.explore.settings import Exploration
from potluck.model.submodels import SlimmableModel

__all__ = ["evolve_counts", "uniform_rates"]

Rates = npt.NDArray[np.float64]
ScoreCounts = Callable[[Sequence[Counts]], Sequence[float]]

CROSSOVER_PROBABILITY, DISTRIBUTION_INDEX = 0.9, 15.0


def uniform_rates(settings: Exploration, sets: int) -> list[list[float]]:
    """Vectors with one rate for all channel sets, from 0 to the highest rate."""
    return [[float(rate)] * sets for rate in np.linspace(0.0, settings.highest_rate, settings.uniform)]


def evolve_counts(
    slimmable: SlimmableModel,
    settings: Exploration,
    costs: ScoreCounts,
    gains: ScoreCounts,
    progress: Callable[[int], None],
) -> list[Counts]:
    """All candidates evaluated. Equal settings and scores visit the same ones, so a search can be resumed."""
    algorithm = _create_nsga2(slimmable, settings)
    deadline = None if settings.minutes is None else time.monotonic() + 60 * settings.minutes
    visited: dict[Counts, None] = {}
    generation = 0
    while algorithm.has_next() and (deadline is None or time.monotonic() < deadline):
        offspring = algorithm.ask()
        counts = [slimmable.kept_counts([float(rate) for rate in rates], settings.grid) for rates in offspring.get("X")]
        visited.update(dict.fromkeys(counts))
        offspring.set("F", np.array([[cost, -gain] for gain, cost in zip(gains(counts), costs(counts), strict=True)]))
        for individual in offspring:
            individual.evaluated.update(["F", "G", "H"])
        algorithm.tell(infills=offspring)
        generation += 1
        progress(generation)
    return list(visited)


def _create_nsga2(slimmable: SlimmableModel, settings: Exploration) -> Any:
    try:
        from pymoo.algorithms.moo.nsga2 import NSGA2  # type: ignore[import-untyped, unused-ignore]
        from pymoo.core.problem import Problem  # type: ignore[import-untyped, unused-ignore]
        from pymoo.operators.crossover.sbx import SBX  # type: ignore[import-untyped, unused-ignore]
        from pymoo.operators.mutation.pm import PM  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise UserError("`potluck explore` needs pymoo; pip install 'potluck[explore]'") from None
    sets = len(slimmable.sets)
    problem = Problem(n_var=sets, n_obj=2, xl=0.0, xu=settings.highest_rate)
    algorithm = NSGA2(
        pop_size=settings.population,
        sampling=_initial_population(settings, sets),
        crossover=SBX(prob=CROSSOVER_PROBABILITY, eta=DISTRIBUTION_INDEX),
        mutation=PM(prob_var=1 / sets, eta=DISTRIBUTION_INDEX),
    )
    algorithm.setup(problem, termination=("n_gen", settings.generations), seed=settings.seed, verbose=False)
    return algorithm


def _initial_population(settings: Exploration, sets: int) -> Rates:
    """The uniform vectors, and random vectors that rise or fall from input to output."""
    rng = np.random.default_rng(settings.seed)
    uniform = np.array(uniform_rates(settings, sets))
    random_count = max(0, settings.population - len(uniform))
    level = rng.uniform(0, settings.highest_rate, (random_count, 1))
    slope = rng.uniform(-1, 1, (random_count, 1)) * np.linspace(-0.5, 0.5, sets)
    sloped = level + settings.highest_rate * (slope + rng.normal(0, 0.1, (random_count, sets)))
    population: Rates = np.vstack([uniform, np.clip(sloped, 0.0, settings.highest_rate)])
    return population
