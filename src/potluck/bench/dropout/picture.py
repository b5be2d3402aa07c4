"""The charts: step times, the explored front, accuracy over virtual time in each setting."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.bench.chart import Chart, Series
from potluck.bench.dropout.methods import BOUND, METHODS, OURS, PUBLISHED
from potluck.bench.dropout.standings import Run, Standing, standings
from potluck.bench.dropout.steps import NETWORKS, RATES
from potluck.bench.dropout.workload import SETTINGS
from potluck.bench.experiment import Results

__all__ = ["charts"]

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


def charts(results: Results) -> Sequence[Chart]:
    found = [_steps(results)]
    if "exploration" in results:
        found.append(_front(results))
    return [*found, *map(_training, standings(results))]


def _steps(results: Results) -> Chart:
    groups = [f"{title} {rate}" for title in NETWORKS.values() for rate in RATES]
    rows = [results[f"step/{name}"][str(rate)] for name in NETWORKS for rate in RATES]
    return Chart(
        title="A step with channels left out, as a share of a whole one",
        y_label="share",
        x_label="network and rate",
        groups=groups,
        series=[Series("MACs", [row["macs"] for row in rows]), Series("time", [row["time"] for row in rows])],
    )


def _front(results: Results) -> Chart:
    found = results["exploration"]
    lines = [
        Series(title, [gain for _, gain in found[key]], [share for share, _ in found[key]])
        for key, title in (("front", "explored"), ("uniform", "one rate for all layers"))
    ]
    return Chart(title="What a short training gains", y_label="accuracy gained", x_label="share of MACs", series=lines)


def _training(standing: Standing) -> Chart:
    drawn = [method for method in DRAWN if method in standing.runs]
    end = max(run.times_s[-1] for runs in standing.runs.values() for run in runs)
    grid = [end * place / POINTS for place in range(1, POINTS + 1)]
    return Chart(
        title=f"{SETTINGS[standing.setting].title}, speeds varying {standing.variation} rounds",
        y_label="accuracy, %",
        x_label="virtual time in slots of a mini-batch",
        series=[
            Series(SHORT.get(name, METHODS[name].title), _means(standing.runs[name], grid), grid) for name in drawn
        ],
    )


def _means(runs: Sequence[Run], grid: Sequence[float]) -> list[float]:
    """The mean over seeds of the latest score at each time."""
    return [100 * sum(_latest(run, at) for run in runs) / len(runs) for at in grid]


def _latest(run: Run, at: float) -> float:
    before = [accuracy for time, accuracy in zip(run.times_s, run.accuracies, strict=True) if time <= at]
    return before[-1] if before else 0.0
