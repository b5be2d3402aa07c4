"""The charts of the pipeline benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.benchmark import Results
from benchmarks.pipeline.pipeline_experiments import LINKS, RECOVERIES
from benchmarks.pipeline.pipeline_learning import learning_results
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = ["build_charts"]


def build_charts(results: Results) -> Sequence[Chart]:
    return [
        _speed_chart(results),
        _adaptation_chart(results["adaptation"]),
        _recovery_chart(results),
        _learning_chart(results),
    ]


def _learning_chart(results: Results) -> Chart:
    first = {name: runs[0] for name, runs in learning_results(results).items()}
    series = [
        ChartSeries(name, [100 * value for value in run["accuracies"]], run["times_s"]) for name, run in first.items()
    ]
    return Chart(title="What is learned", y_label="test accuracy, %", x_label="seconds", series=series)


def _speed_chart(results: Results) -> Chart:
    found = sorted((result["capacities"][-1], result) for name, result in results.items() if name.startswith("1:1:"))
    names = ("published", "ours, order given", "ours, order searched")
    series = [
        ChartSeries(
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


def _adaptation_chart(found: Any) -> Chart:
    batches = [float(place) - 10 for place in range(len(found["series"]))]
    return Chart(
        title="A device becomes 4 times slower", y_label="seconds from batch to batch", x_label="batches since then",
        series=[ChartSeries("ours", found["series"], batches)],
        marks=[("optimum", found["best_s"]), ("layout that stays", found["static_s"])],
    )  # fmt: skip


def _recovery_chart(results: Results) -> Chart:
    links = [link for link in LINKS if f"replication/{link}" in results]
    series = [
        ChartSeries(name, [results[f"recovery/{name}/{link}"]["cost_s"] for link in links]) for name in RECOVERIES
    ]
    return Chart(
        title="What a death costs", y_label="seconds",
        series=series, groups=[LINKS[link] for link in links],
    )  # fmt: skip
