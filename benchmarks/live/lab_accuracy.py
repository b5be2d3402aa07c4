"""Every recipe in the lab, beside its simulation: by how much the predicted time of a round or batch is wrong."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.benchmark import BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_figures import Figure, Goal, bar_series, figure_of_repeats
from benchmarks.live.live_trial import measure_rounds, predict_rounds, recipe_job
from potluck.recipes.recipe_catalogue import CATALOGUE as RECIPES
from potluck.report.svg_chart import Chart

__all__ = ["build_charts", "compute_figures", "declare_pieces"]

_PREFIX = "lab"
_QUICK_RECIPES = ("sync-sgd", "dynacomm", "fedavg", "ftpipehd")
_GOAL = Goal("≤", 10.0)
_START_S = 3.5  # of a run, and its first round; processes are forked from a server


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """Repeats alternate between recipes, so that other load on the machine affects all of them."""
    repeats, rounds = (1, 4) if context.quick else (3, 10)
    return [
        BenchmarkPiece(
            f"{_PREFIX}/{recipe}/{repeat}", {"recipe": recipe, "rounds": rounds, "repeat": repeat},
            partial(_measure_recipe, recipe, rounds, context.seed + repeat), _START_S + 1.2 * rounds,
        )
        for repeat in range(repeats)
        for recipe in (_QUICK_RECIPES if context.quick else RECIPES)
    ]  # fmt: skip


def _measure_recipe(recipe: str, rounds: int, seed: int) -> dict[str, Any]:
    """Mean seconds of a round; an asynchronous recipe or a pipeline has rounds of very different length."""
    job = recipe_job(recipe, rounds, seed)
    measured = measure_rounds(job, emulate_fleet=True)
    return {"measured_s": statistics.fmean(measured), "predicted_s": statistics.fmean(predict_rounds(job))}


def compute_figures(results: Results) -> Iterator[Figure]:
    """The worst recipe first, then all of them."""
    figures = {recipe: _error_figure(recipe, runs) for recipe, runs in _runs_by_recipe(results).items()}
    worst = max(figures, key=lambda recipe: figures[recipe].measured)
    yield figure_of_repeats(
        f"lab against simulated, {'every recipe' if len(figures) == len(RECIPES) else 'some recipes'}: largest error",
        "%", _errors(_runs_by_recipe(results)[worst]), executed="live", goal=_GOAL, note=f"{worst}; all are below",
    )  # fmt: skip
    yield from figures.values()


def _error_figure(recipe: str, runs: list[Mapping[str, Any]]) -> Figure:
    predicted, measured = (statistics.fmean(run[key] for run in runs) for key in ("predicted_s", "measured_s"))
    note = f"predicted {predicted:.4g} s, measured {measured:.4g} s"
    return figure_of_repeats(f"  {recipe}", "%", _errors(runs), executed="live", note=note)


def _errors(runs: list[Mapping[str, Any]]) -> list[float]:
    return [100 * abs(run["measured_s"] / run["predicted_s"] - 1) for run in runs]


def _runs_by_recipe(results: Results) -> dict[str, list[Mapping[str, Any]]]:
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for name, result in results.items():
        if name.startswith(f"{_PREFIX}/"):
            runs.setdefault(name.split("/")[1], []).append(result)
    return runs


def build_charts(results: Results) -> list[Chart]:
    """The ten recipes with the largest errors."""
    figures = sorted(list(compute_figures(results))[1:], key=lambda figure: -figure.measured)[:10]
    return [
        Chart(
            title="Error of the predicted round time, the ten largest",
            y_label="%",
            groups=[figure.name.strip() for figure in figures],
            series=[bar_series("mean, 95 % interval", figures)],
            marks=[("goal", _GOAL.value)],
        )
    ]
