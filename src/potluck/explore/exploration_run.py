"""Runs one exploration: searches, trains the best candidates again, and compares them with uniform rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from potluck.explore.candidate_evaluator import Counts, EvaluationRequest
from potluck.explore.evaluation_workers import CachedEvaluator
from potluck.explore.nsga2_search import evolve_counts, uniform_rates
from potluck.explore.settings import Exploration
from potluck.fleet.compute_profile import ComputeProfile
from potluck.job import Job
from potluck.model.layer_chain import trace_layers
from potluck.model.submodels import SlimmableModel
from potluck.model.submodels.narrow_network import build_narrow_network, width_agnostic_graph
from potluck.planning.pareto_table import ParetoTable, hypervolume, pareto_front
from potluck.run.measured_costs import check_profile

__all__ = [
    "ExplorationProgress",
    "ExplorationResult",
    "ExplorationRun",
    "ProfiledCost",
    "rank_correlation",
    "slowest_profile",
]


REFERENCE_COST = 1.0001  # of the hypervolume; just above 1, so that the full model counts too


class ExplorationProgress(NamedTuple):
    """Reported after every new evaluation: request and score, evaluations so far, and the generation."""

    request: EvaluationRequest
    score: float
    done: int
    generation: int


class ExplorationResult(NamedTuple):
    """The Pareto table, and how it compares with uniform rates."""

    table: ParetoTable
    uniform: ParetoTable
    hypervolume: float
    uniform_hypervolume: float
    evaluations: int
    correlation: float | None  # rank correlation of the proxy with training, if a proxy was used


class ExplorationRun:
    """Requests evaluations and builds the table from their scores."""

    def __init__(
        self,
        name: str,
        slimmable: SlimmableModel,
        settings: Exploration,
        evaluator: CachedEvaluator,
        progress: Callable[[ExplorationProgress], None],
        profiled: ProfiledCost | None = None,
    ) -> None:
        self._name = name
        self._slimmable = slimmable
        self._settings = settings
        self._evaluator = evaluator
        evaluator.on_score = self._report_progress
        self._progress = progress
        self._profiled = profiled if settings.cost == "macs" else None
        self._generation = 0
        self._done = 0

    def run_search(self) -> ExplorationResult:
        """Search and compare; entries of the table and uniform rates are both trained `repeats` times."""
        rate_vectors = uniform_rates(self._settings, len(self._slimmable.sets))
        uniform = [self._slimmable.kept_counts(rates, self._settings.grid) for rates in rate_vectors]
        best = self._search_front(
            evolve_counts(
                self._slimmable, self._settings, self._cost_fractions, self._judge_candidates, self._next_generation
            )
        )
        candidates = list(dict.fromkeys([*best, *uniform]))
        table, uniform_table = self._pareto_table(candidates), self._pareto_table(uniform)
        min_gain = min(0.0, *(entry.gain for entry in (*table.entries, *uniform_table.entries)))
        areas = (self._front_hypervolume(table, min_gain), self._front_hypervolume(uniform_table, min_gain))
        return ExplorationResult(
            table, uniform_table, *areas, self._evaluator.known_scores, self._proxy_correlation(candidates)
        )

    def _judge_candidates(self, counts: Sequence[Counts]) -> list[float]:
        judge = "training" if self._settings.proxy == "none" else self._settings.proxy
        return self._evaluator.evaluate_all([EvaluationRequest(judge, candidate, 0) for candidate in counts])

    def _cost_fractions(self, counts: Sequence[Counts]) -> list[float]:
        """Costs as fractions of the full model's."""
        if self._profiled is not None:
            return [self._profiled.cost_fraction(candidate) for candidate in counts]
        if self._settings.cost == "macs":
            return [self._slimmable.macs_fraction(candidate) for candidate in counts]
        full_s, *candidate_s = self._evaluator.evaluate_all(
            [EvaluationRequest("seconds", candidate, 0) for candidate in (self._slimmable.full_counts, *counts)]
        )
        return [min(seconds / full_s, 1.0) for seconds in candidate_s]

    def _search_front(self, visited: Sequence[Counts]) -> list[Counts]:
        """The Pareto front by the search's own scores."""
        return [
            visited[index] for index in pareto_front(self._cost_fractions(visited), self._judge_candidates(visited))
        ]

    def _pareto_table(self, counts: Sequence[Counts]) -> ParetoTable:
        """The table of these candidates; measured seconds are converted to that fraction of the full model's MACs."""
        rows = [
            (max(1, round(fraction * self._slimmable.full_macs)), gain, self._dropout_rates(candidate))
            for candidate, fraction, gain in zip(
                counts, self._cost_fractions(counts), self._mean_gains(counts), strict=True
            )
        ]
        sets = [channel_set.name for channel_set in self._slimmable.sets]
        cost = "seconds" if self._profiled is not None else self._settings.cost
        return ParetoTable.from_trials(self._name, sets, self._slimmable.full_macs, rows, cost)

    def _mean_gains(self, counts: Sequence[Counts]) -> list[float]:
        """The mean gain of each candidate over the repeats."""
        repeats = self._settings.repeats
        scores = self._evaluator.evaluate_all(
            [EvaluationRequest("training", candidate, repeat) for candidate in counts for repeat in range(repeats)]
        )
        return [float(mean) for mean in np.reshape(scores, (len(counts), repeats)).mean(1)]

    def _dropout_rates(self, counts: Counts) -> list[float]:
        return [1 - kept / channel_set.size for kept, channel_set in zip(counts, self._slimmable.sets, strict=True)]

    def _front_hypervolume(self, table: ParetoTable, min_gain: float) -> float:
        return hypervolume(table.cost_fractions, [entry.gain for entry in table.entries], REFERENCE_COST, min_gain)

    def _proxy_correlation(self, counts: Sequence[Counts]) -> float | None:
        if self._settings.proxy == "none" or len(counts) < 3:
            return None
        return rank_correlation(self._judge_candidates(counts), self._mean_gains(counts))

    def _next_generation(self, generation: int) -> None:
        self._generation = generation

    def _report_progress(self, request: EvaluationRequest, score: float) -> None:
        self._done += 1
        self._progress(ExplorationProgress(request, score, self._done, self._generation))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation; ties get their mean rank."""
    return float(np.corrcoef(_mean_ranks(first), _mean_ranks(second))[0, 1])


def _mean_ranks(values: Sequence[float]) -> list[float]:
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts - 1) / 2
    return [float(rank) for rank in means[inverse]]


def slowest_profile(job: Job) -> ComputeProfile | None:
    """The profile of the slowest device that has one: it needs sub-models most."""
    profiles = [device.profile for device in job.fleet.members if device.profile is not None]
    return min(profiles, key=lambda profile: profile.flops, default=None)


class ProfiledCost:
    """Cost fractions of candidates by one profile: each layer's measured seconds, scaled with the MACs that are kept.

    Raises SettingError if the profile was made for another model.
    """

    def __init__(self, slimmable: SlimmableModel, profile: ComputeProfile) -> None:
        check_profile(profile, slimmable.chain, "fleet.devices.profile")
        self._slimmable = slimmable
        self._graph = width_agnostic_graph(slimmable)
        self._seconds = [layer.forward_s + layer.backward_s for layer in profile.layers]
        self.cost_fraction = cache(self._cost_fraction)

    def _cost_fraction(self, counts: Counts) -> float:
        """Seconds of the sub-model over those of the full model; a layer without MACs always takes its full time."""
        chain = self._slimmable.chain
        module = build_narrow_network(self._slimmable, self._graph, counts)
        narrow = trace_layers(module, chain.inputs)
        kept_s = sum(
            seconds * (part.macs / whole.macs if whole.macs else 1.0)
            for seconds, part, whole in zip(self._seconds, narrow.layers, chain.layers, strict=True)
        )
        return min(kept_s / sum(self._seconds), 1.0)
