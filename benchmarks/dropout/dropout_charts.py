"""The charts: step times, the explored front, accuracy over virtual time in each setting."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.benchmark import Results
from benchmarks.dropout.dropout_methods import BOUND, METHODS, OURS, PUBLISHED
from benchmarks.dropout.dropout_standings import DropoutRun, SettingStanding, setting_standings
from benchmarks.dropout.dropout_steps import NETWORKS, RATES
from benchmarks.dropout.dropout_workload import SETTINGS
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = ["build_charts"]

POINTS = 10
DRAWN = (OURS, PUBLISHED, "small", "federated-dropout", "heterofl", "drop-stragglers", BOUND)
SHORT = {
    OURS: "ordered",
    PUBLISHED: "DISTREAL",
    "small": "small",
    "federated-dropout": "FD",
    "heterofl": "HeteroFL",
    "drop-stragglers": "dropped",
    BOUND: "full",
}


def build_charts(results: Results) -> Sequence[Chart]:
    found = [_step_chart(results)]
    if "exploration" in results:
        found.append(_front_chart(results))
    return [*found, *map(_training_chart, setting_standings(results))]


def _step_chart(results: Results) -> Chart:
    groups = [f"{title} {rate}" for title in NETWORKS.values() for rate in RATES]
    rows = [results[f"step/{name}"][str(rate)] for name in NETWORKS for rate in RATES]
    return Chart(
        title="A step with channels left out, as a share of a whole one",
        y_label="share",
        x_label="network and rate",
        groups=groups,
        series=[ChartSeries("MACs", [row["macs"] for row in rows]), ChartSeries("time", [row["time"] for row in rows])],
    )


def _front_chart(results: Results) -> Chart:
    found = results["exploration"]
    lines = [
        ChartSeries(title, [gain for _, gain in found[key]], [share for share, _ in found[key]])
        for key, title in (("front", "explored"), ("uniform", "one rate for all layers"))
    ]
    return Chart(title="What a short training gains", y_label="accuracy gained", x_label="share of MACs", series=lines)


def _training_chart(standing: SettingStanding) -> Chart:
    drawn = [method for method in DRAWN if method in standing.runs]
    end = max(run.times_s[-1] for runs in standing.runs.values() for run in runs)
    grid = [end * place / POINTS for place in range(1, POINTS + 1)]
    return Chart(
        title=f"{SETTINGS[standing.setting].title}, speeds varying {standing.variation} rounds",
        y_label="accuracy, %",
        x_label="virtual time in slots of a mini-batch",
        series=[
            ChartSeries(SHORT.get(name, METHODS[name].title), _mean_accuracies(standing.runs[name], grid), grid)
            for name in drawn
        ],
    )


def _mean_accuracies(runs: Sequence[DropoutRun], grid: Sequence[float]) -> list[float]:
    """The mean over seeds of the latest score at each time."""
    return [100 * sum(_latest_accuracy(run, at) for run in runs) / len(runs) for at in grid]


def _latest_accuracy(run: DropoutRun, at: float) -> float:
    before = [accuracy for time, accuracy in zip(run.times_s, run.accuracies, strict=True) if time <= at]
    return before[-1] if before else 0.0
