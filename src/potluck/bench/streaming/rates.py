"""The four sets of stream rates: time to a target against the baseline, accuracy, and what has to be held."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from potluck.bench.chart import Chart, Series
from potluck.bench.experiment import Context, Piece, Results
from potluck.bench.figures import Figure, Goal
from potluck.bench.streaming import buffers, published, race
from potluck.bench.streaming.testbed import SETS, RateSet

__all__ = ["RECIPES", "charts", "figures", "pieces"]

RECIPES = ("ddl", "scadles", "scadles-plus")
_POLICIES = ("persistence", "truncation")
_ENOUGH: Mapping[RateSet, int] = {"S1": 1500, "S2": 200, "S1'": 1200, "S2'": 300}  # rounds until buffers differ by far


def pieces(context: Context) -> list[Piece]:
    """One run for each recipe, set and seed; buffers are timing only."""
    workload, seeds = (race.QUICK, 1) if context.quick else (race.FULL, 1)
    runs = [
        _run(recipe, rates, repeat, workload, context)
        for repeat in range(seeds)
        for rates in SETS
        for recipe in RECIPES
    ]
    rounds = _ENOUGH if context.quick else dict.fromkeys(SETS, 6000)
    return [*runs, *(_held(rates, policy, rounds[rates], context.seed) for rates in SETS for policy in _POLICIES)]


def _run(recipe: str, rates: RateSet, repeat: int, workload: race.Workload, context: Context) -> Piece:
    seed = context.seed + repeat
    parameters = {"workload": dict(workload._asdict()), "recipe": recipe, "rates": rates, "repeat": repeat}
    work, weight = partial(race.measure, workload, recipe, rates, seed, context.data), 4.0 if context.quick else 130.0
    return Piece(f"{recipe}/{rates}/{repeat}", parameters, work, weight, beside=True)


def _held(rates: RateSet, policy: str, rounds: int, seed: int) -> Piece:
    parameters = {"rates": rates, "policy": policy, "rounds": rounds, "seed": seed}
    work = partial(buffers.measure, rates, policy, rounds, seed)
    return Piece(f"{policy}/{rates}", parameters, work, weight=rounds / 400, beside=True)


def figures(results: Results) -> list[Figure]:
    """Ours first, with the goals; the paper's recipe beside the paper's numbers."""
    gains = {recipe: {rates: _gain(results, recipe, rates) for rates in SETS} for recipe in RECIPES[1:]}
    best = max(gains["scadles-plus"].values())
    target = next(iter(_runs(results, "ddl", "S1")))["target"]
    rows = [
        Figure(name="scadles-plus: time to target against ddl, best set", unit="x", measured=best,
               published=published.paper(max(published.SPEED_UP.values())), goal=Goal("≥", 3.29),
               note=f"target {100 * target:g} % top-1"),
    ]  # fmt: skip
    for recipe in ("scadles-plus", "scadles"):
        for rates in SETS:
            rows += _set_figures(results, recipe, rates, gains[recipe][rates])
    return [*rows, *_buffer_figures(results)]


def _set_figures(results: Results, recipe: str, rates: str, gain: float) -> Iterator[Figure]:
    ours = recipe == "scadles-plus"
    runs = _runs(results, recipe, rates)
    note = f"{_mean(runs, 'samples') / _mean(runs, 'rounds'):.0f} samples and {_pace(runs):.2f} s a round"
    yield Figure(
        name=f"{recipe}, {rates}: time to target against ddl", unit="x", measured=gain,
        published=published.paper(published.SPEED_UP[rates]), goal=Goal("≥", 1.0) if ours else None,
        note=f"{note}; ddl {_pace(_runs(results, 'ddl', rates)):.2f} s",
    )  # fmt: skip
    lost = 100 * (_mean(_runs(results, "ddl", rates), "accuracy") - _mean(runs, "accuracy"))
    yield Figure(
        name="  accuracy lost against ddl", unit="pt", measured=lost,
        published=published.paper(published.ACCURACY_LOST[rates]), goal=Goal("≤", 0.1) if ours else None,
        note=f"at {100 * _mean(runs, 'accuracy'):.1f} %, mean of {len(runs)}",
    )  # fmt: skip


def _buffer_figures(results: Results) -> Iterator[Figure]:
    for rates in SETS:
        kept, cut = (results[f"{policy}/{rates}"] for policy in _POLICIES)
        note = f"{kept['peak']:,} against {cut['peak']:,} samples on all devices after {kept['time_s'] / 3600:.1f} h"
        yield Figure(
            name=f"buffer, {rates}: persistence against truncation", unit="x", measured=kept["peak"] / cut["peak"],
            published=published.paper(published.BUFFER_RATIO[rates]), goal=Goal("≥", 800.0), note=note,
        )  # fmt: skip


def _gain(results: Results, recipe: str, rates: str) -> float:
    """Of mean times, over seeds; 0 where the target is never reached."""
    seconds = [
        [race.seconds_to(run["target"], run["curve"]) for run in _runs(results, name, rates)]
        for name in ("ddl", recipe)
    ]
    ddl, ours = (statistics.mean(found) for found in seconds)
    return ddl / ours if ddl < float("inf") else 0.0


def _runs(results: Results, recipe: str, rates: str) -> list[Mapping[str, Any]]:
    return [result for name, result in results.items() if name.rpartition("/")[0] == f"{recipe}/{rates}"]


def _mean(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.mean(float(run[key]) for run in runs)


def _pace(runs: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of a round."""
    return _mean(runs, "time_s") / _mean(runs, "rounds")


def charts(results: Results) -> list[Chart]:
    series = [Series(name, [_gain(results, name, rates) for rates in SETS]) for name in ("scadles", "scadles-plus")]
    paper = Series("paper's ScaDLES", [published.SPEED_UP[rates] for rates in SETS])
    return [
        Chart(title="Time to target against the baseline", y_label="x", groups=SETS, series=[*series, paper]),
        *(_curves(results, rates) for rates in ("S1", "S2")),
    ]


def _curves(results: Results, rates: str) -> Chart:
    series = []
    for recipe in RECIPES:
        curve = _runs(results, recipe, rates)[0]["curve"]
        series.append(Series(recipe, [100 * score for _, score in curve], [at / 60 for at, _ in curve]))
    return Chart(title=f"Rates {rates}", y_label="accuracy, %", x_label="minutes", series=series)
