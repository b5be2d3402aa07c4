"""The figures and charts of `dropout`: step times, the explored front, accuracy of every method in each setting."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.benchmark import Results
from benchmarks.benchmark_figures import Figure, Goal, figure_of_repeats, interval_of_repeats
from benchmarks.dropout.dropout_measurements import NETWORKS, RATES
from benchmarks.dropout.dropout_workload import BOUND, METHODS, OURS, PUBLISHED, SETTINGS, TABLE
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = ["DropoutRun", "SettingStanding", "build_charts", "compute_figures", "piece_name", "setting_standings"]

_LAST_FRACTION = 0.2  # of the time, over which a final accuracy is averaged
_ABLATION = "uniform-dropout"
_LEAST_MACS = 0.25  # fraction below which the goal for the step time does not apply


class DropoutRun(NamedTuple):
    """The accuracy over time of one training run."""

    times_s: Sequence[float]
    accuracies: Sequence[float]
    end_s: float  # when all methods had to stop

    @property
    def final_accuracy(self) -> float:
        """The mean of the accuracies near the end of the time, or the last one.

        A fixed number of them would be unfair: a method with long rounds has few, and the first is of the untrained
        model.
        """
        pairs = zip(self.times_s, self.accuracies, strict=True)
        late = [accuracy for at, accuracy in pairs if at >= (1 - _LAST_FRACTION) * self.end_s] or self.accuracies[-1:]
        return sum(late) / len(late)

    def time_to_accuracy(self, target: float) -> float:
        """When the run first reached this accuracy; infinite if it never did."""
        pairs = zip(self.times_s, self.accuracies, strict=True)
        return next((at for at, accuracy in pairs if accuracy >= target), math.inf)


class SettingStanding(NamedTuple):
    """All training runs of one setting, by method."""

    setting: str
    variation: str
    runs: Mapping[str, Sequence[DropoutRun]]

    def mean_final_accuracy(self, method: str) -> float:
        """The mean over seeds."""
        accuracies = [run.final_accuracy for run in self.runs[method]]
        return sum(accuracies) / len(accuracies)

    def best_rival(self) -> str:
        """The baseline with the highest accuracy; DISTREAL as published and the ablations have their own figures."""
        others = [method for method in self.runs if method not in (OURS, TABLE, PUBLISHED, BOUND, _ABLATION)]
        return max(others, key=self.mean_final_accuracy)

    def speed_ups(self, rival: str) -> list[float]:
        """For each seed, the rival's time to its final accuracy over our time to it; 0 if we never reach it."""
        ratios = []
        for index, ours in enumerate(self.runs[OURS]):
            theirs = self.runs[rival][index % len(self.runs[rival])]
            target = theirs.final_accuracy
            ratios.append(theirs.time_to_accuracy(target) / ours.time_to_accuracy(target))
        return ratios


def piece_name(setting: str, variation: str, method: str, seed: int) -> str:
    """The bound has full resources, which do not vary, so it is trained once for both variations."""
    return f"{setting}/{'steady' if method == BOUND else variation}/{method}/{seed}"


def setting_standings(results: Results) -> list[SettingStanding]:
    """One per setting and variation, in the order of the pieces."""
    by_setting: dict[tuple[str, str], dict[str, list[DropoutRun]]] = {}
    for name, result in results.items():
        if name.count("/") == 3:
            setting, variation, method, _ = name.split("/")
            by_setting.setdefault((setting, variation), {}).setdefault(method, []).append(_parse_run(result))
    bounds = {setting: runs for (setting, variation), runs in by_setting.items() if variation == "steady"}
    return [
        SettingStanding(setting, variation, _in_method_order({**runs, **bounds.get(setting, {})}))
        for (setting, variation), runs in by_setting.items()
        if variation != "steady"
    ]


def _in_method_order(runs: Mapping[str, Sequence[DropoutRun]]) -> dict[str, Sequence[DropoutRun]]:
    return {method: runs[method] for method in METHODS if method in runs}


def _parse_run(result: Mapping[str, Any]) -> DropoutRun:
    return DropoutRun(result["times_s"], result["accuracies"], result["end_s"])


# --- figures ----------------------------------------------------------------------------------------------------------


def compute_figures(results: Results) -> list[Figure]:
    figures = [*_step_figures(results), *_exploration_figures(results["exploration"])]
    for standing in setting_standings(results):
        figures += _training_figures(standing)
    return figures


def _step_figures(results: Results) -> Iterator[Figure]:
    for name, title in NETWORKS.items():
        for rate in RATES:
            row = results[f"step/{name}"][str(rate)]
            goal = Goal("≤", 1.2) if row["macs"] >= _LEAST_MACS else None
            yield Figure(
                name=f"{title}, rate {rate}: step time relative to MACs",
                unit="x",
                measured=row["time"] / row["macs"],
                goal=goal,
                note=f"{row['time']:.2f} of a step of {1e3 * row['whole_s']:.0f} ms, {row['macs']:.2f} of its MACs",
                executed="measured",
            )


def _exploration_figures(result: Mapping[str, Any]) -> Iterator[Figure]:
    note = f"{result['evaluations']} short training runs in two processes"
    yield Figure(
        name="exploration time",
        unit="min",
        measured=result["minutes"],
        goal=Goal("≤", 20.0),
        note=note,
        executed="measured",
    )
    more = 100 * (result["hypervolume"] / result["uniform_hypervolume"] - 1)
    yield Figure(
        name="  hypervolume above one rate for all layers",
        unit="%",
        measured=more,
        goal=Goal("≥", 0.0),
        executed="measured",
    )
    yield Figure(
        name="  largest shortfall of the front behind one rate",
        unit="",
        measured=result["behind"],
        goal=Goal("≤", 0.0),
        executed="measured",
    )


def _training_figures(standing: SettingStanding) -> Iterator[Figure]:
    where = f"{SETTINGS[standing.setting].title}, varying {standing.variation} rounds"
    ours = [100 * run.final_accuracy for run in standing.runs[OURS]]
    yield figure_of_repeats(
        f"{where}: accuracy of DISTREAL, ordered", "%", ours, note=_other_accuracies(standing), executed="simulated"
    )
    if PUBLISHED in standing.runs:
        published = [100 * run.final_accuracy for run in standing.runs[PUBLISHED]]
        yield figure_of_repeats("  DISTREAL as published", "%", published, executed="simulated")
    best = standing.best_rival()
    yield Figure(
        name="  ahead of the best baseline", unit="pt", measured=_accuracy_lead(standing, best), goal=Goal("≥", 0.0),
        note=METHODS[best].title, executed="simulated",
    )  # fmt: skip
    yield figure_of_repeats(
        "  speed-up to the accuracy of the best baseline",
        "x",
        standing.speed_ups(best),
        goal=Goal("≥", 1.0),
        executed="simulated",
    )
    if "heterofl" in standing.runs:
        speed_ups = standing.speed_ups("heterofl")
        yield figure_of_repeats(
            "  speed-up to the accuracy of HeteroFL", "x", speed_ups, goal=Goal("≥", 2.0), executed="simulated"
        )
    if TABLE in standing.runs:
        yield Figure(
            name="  gain of an explored table over one rate for all layers",
            unit="pt",
            measured=-_accuracy_lead(standing, TABLE),
            goal=Goal("≥", 1.0),
            executed="simulated",
        )
    if _ABLATION in standing.runs:
        ahead = _accuracy_lead(standing, _ABLATION)
        yield Figure(
            name="  ahead of random filters with one rate for all layers",
            unit="pt",
            measured=ahead,
            goal=Goal("≥", 0.0),
            executed="simulated",
        )
    if BOUND in standing.runs:
        behind = -_accuracy_lead(standing, BOUND)
        yield Figure(
            name="  behind FedAvg with full resources",
            unit="pt",
            measured=behind,
            goal=Goal("≤", 0.5),
            executed="simulated",
        )


def _accuracy_lead(standing: SettingStanding, rival: str) -> float:
    return 100 * (standing.mean_final_accuracy(OURS) - standing.mean_final_accuracy(rival))


def _other_accuracies(standing: SettingStanding) -> str:
    others = [method for method in standing.runs if method != OURS]
    return ", ".join(f"{METHODS[method].title} {100 * standing.mean_final_accuracy(method):.1f}" for method in others)


# --- charts -----------------------------------------------------------------------------------------------------------


_POINTS = 10  # of a curve
_DRAWN = (OURS, PUBLISHED, "small", "federated-dropout", "heterofl", "drop-stragglers", BOUND)
_SHORT_TITLES = {
    OURS: "ordered",
    PUBLISHED: "DISTREAL",
    "small": "small",
    "federated-dropout": "FD",
    "heterofl": "HeteroFL",
    "drop-stragglers": "dropped",
    BOUND: "full",
}


def build_charts(results: Results) -> Sequence[Chart]:
    charts = [_step_chart(results)]
    if "exploration" in results:
        charts.append(_front_chart(results))
    return [*charts, *map(_training_chart, setting_standings(results))]


def _step_chart(results: Results) -> Chart:
    groups = [f"{title} {rate}" for title in NETWORKS.values() for rate in RATES]
    rows = [results[f"step/{name}"][str(rate)] for name in NETWORKS for rate in RATES]
    return Chart(
        title="A step with channels left out, relative to a full step",
        y_label="fraction",
        x_label="network and rate",
        groups=groups,
        series=[ChartSeries("MACs", [row["macs"] for row in rows]), ChartSeries("time", [row["time"] for row in rows])],
    )


def _front_chart(results: Results) -> Chart:
    result = results["exploration"]
    lines = [
        ChartSeries(title, [gain for _, gain in result[key]], [macs for macs, _ in result[key]])
        for key, title in (("front", "explored"), ("uniform", "one rate for all layers"))
    ]
    return Chart(
        title="Gain of a short training run", y_label="accuracy gained", x_label="fraction of MACs", series=lines
    )


def _training_chart(standing: SettingStanding) -> Chart:
    drawn = [method for method in _DRAWN if method in standing.runs]
    end = max(run.times_s[-1] for runs in standing.runs.values() for run in runs)
    grid = [end * index / _POINTS for index in range(1, _POINTS + 1)]
    return Chart(
        title=f"{SETTINGS[standing.setting].title}, speeds varying {standing.variation} rounds",
        y_label="accuracy, %",
        x_label="simulated time in slots of a mini-batch; whiskers: 95 % interval of ours",
        series=[_accuracy_series(name, standing.runs[name], grid) for name in drawn],
    )


def _accuracy_series(name: str, runs: Sequence[DropoutRun], grid: Sequence[float]) -> ChartSeries:
    """The mean over seeds of the latest accuracy at each time; ours with its interval."""
    columns = [[100 * _latest_accuracy(run, at) for run in runs] for at in grid]
    intervals = [interval_of_repeats(column) for column in columns] if len(runs) > 1 and name == OURS else []
    title, means = _SHORT_TITLES.get(name, METHODS[name].title), [sum(column) / len(column) for column in columns]
    return ChartSeries(title, means, grid, [(interval.low, interval.high) for interval in intervals])


def _latest_accuracy(run: DropoutRun, at: float) -> float:
    before = [accuracy for time, accuracy in zip(run.times_s, run.accuracies, strict=True) if time <= at]
    return before[-1] if before else 0.0
