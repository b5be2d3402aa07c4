"""The charts of the pipeline benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from potluck.bench.chart import Chart, Series
from potluck.bench.experiment import Results
from potluck.bench.pipeline.experiments import LINKS, RECOVERIES
from potluck.bench.pipeline.learning import learned

__all__ = ["charts"]


def charts(results: Results) -> Sequence[Chart]:
    return [_sweep(results), _change(results["adaptation"]), _recoveries(results), _learning(results)]


def _learning(results: Results) -> Chart:
    first = {name: runs[0] for name, runs in learned(results).items()}
    series = [Series(name, [100 * value for value in run["accuracies"]], run["times_s"]) for name, run in first.items()]
    return Chart(title="What is learned", y_label="test accuracy, %", x_label="seconds", series=series)


def _sweep(results: Results) -> Chart:
    found = sorted((result["capacities"][-1], result) for name, result in results.items() if name.startswith("1:1:"))
    names = ("published", "ours, order given", "ours, order searched")
    series = [
        Series(
            name,
            [result["PipeDream"]["period_s"] / result[name]["period_s"] for _, result in found],
            [float(worst) for worst, _ in found],
        )
        for name in names
    ]
    return Chart(
        title="Capacities 1:1:k", y_label="times faster than PipeDream", x_label="k", series=series,
        marks=[("published 6.8x", 6.8)],
    )  # fmt: skip


def _change(found: Any) -> Chart:
    batches = [float(place) - 10 for place in range(len(found["series"]))]
    return Chart(
        title="A device becomes 4 times slower", y_label="seconds from batch to batch", x_label="batches since then",
        series=[Series("ours", found["series"], batches)],
        marks=[("optimum", found["best_s"]), ("layout that stays", found["static_s"])],
    )  # fmt: skip


def _recoveries(results: Results) -> Chart:
    links = [link for link in LINKS if f"replication/{link}" in results]
    series = [Series(name, [results[f"recovery/{name}/{link}"]["cost_s"] for link in links]) for name in RECOVERIES]
    return Chart(
        title="What a death costs", y_label="seconds",
        series=series, groups=[LINKS[link] for link in links],
    )  # fmt: skip
