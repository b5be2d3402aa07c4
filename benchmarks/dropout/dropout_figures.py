"""The figures and charts of `dropout`: step times, the explored front, accuracy of every method in each setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.benchmark import Results
from benchmarks.dropout.dropout_measurements import NETWORKS, RATES
from benchmarks.dropout.dropout_workload import BOUND, METHODS, OURS, PUBLISHED, SETTINGS
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = ["ABLATION", "DropoutRun", "SettingStanding", "build_charts", "piece_name", "setting_standings"]

LAST = 0.2  # of the time, whose scores make up a final accuracy
ABLATION = "uniform-dropout"


class DropoutRun(NamedTuple):
    """One training."""

    times_s: Sequence[float]
    accuracies: Sequence[float]
    end_s: float  # when all methods had to stop

    @property
    def final_accuracy(self) -> float:
        """The mean of the scores near the end, or the last one.

        Not of so many scores: who waits has few, and the first of them is that of the untrained model.
        """
        pairs = zip(self.times_s, self.accuracies, strict=True)
        late = [accuracy for at, accuracy in pairs if at >= (1 - LAST) * self.end_s] or self.accuracies[-1:]
        return sum(late) / len(late)

    def time_to_accuracy(self, target: float) -> float:
        """When it first had this accuracy; never is infinite."""
        pairs = zip(self.times_s, self.accuracies, strict=True)
        return next((at for at, accuracy in pairs if accuracy >= target), math.inf)


class SettingStanding(NamedTuple):
    """All trainings of one setting, by method."""

    setting: str
    variation: str
    runs: Mapping[str, Sequence[DropoutRun]]

    def mean_final_accuracy(self, method: str) -> float:
        """The mean over seeds."""
        found = [run.final_accuracy for run in self.runs[method]]
        return sum(found) / len(found)

    def best_rival(self) -> str:
        """The strongest of the other methods; DISTREAL itself and its ablation have figures of their own."""
        others = [method for method in self.runs if method not in (OURS, PUBLISHED, BOUND, ABLATION)]
        return max(others, key=self.mean_final_accuracy)

    def speed_ups(self, rival: str) -> list[float]:
        """For each seed: the rival's time to its own final accuracy, over ours to the same; 0 if we never have it."""
        found = []
        for place, ours in enumerate(self.runs[OURS]):
            theirs = self.runs[rival][place % len(self.runs[rival])]
            found.append(theirs.time_to_accuracy(theirs.final_accuracy) / ours.time_to_accuracy(theirs.final_accuracy))
        return found


def piece_name(setting: str, variation: str, method: str, seed: int) -> str:
    """Full resources do not vary, so that method has one training for both."""
    return f"{setting}/{'steady' if method == BOUND else variation}/{method}/{seed}"


def setting_standings(results: Results) -> list[SettingStanding]:
    """One for each setting and variation, in the order of the pieces."""
    found: dict[tuple[str, str], dict[str, list[DropoutRun]]] = {}
    for name, result in results.items():
        if name.count("/") == 3:
            setting, variation, method, _ = name.split("/")
            found.setdefault((setting, variation), {}).setdefault(method, []).append(_parse_run(result))
    bounds = {setting: runs for (setting, variation), runs in found.items() if variation == "steady"}
    return [
        SettingStanding(setting, variation, _in_method_order({**runs, **bounds.get(setting, {})}))
        for (setting, variation), runs in found.items()
        if variation != "steady"
    ]


def _in_method_order(runs: Mapping[str, Sequence[DropoutRun]]) -> dict[str, Sequence[DropoutRun]]:
    return {method: runs[method] for method in METHODS if method in runs}


def _parse_run(result: Mapping[str, Any]) -> DropoutRun:
    return DropoutRun(result["times_s"], result["accuracies"], result["end_s"])


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
