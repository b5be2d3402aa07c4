"""The figures and charts of `overlap`, from the forecast cases and those that ran in the simulated world."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.benchmark import Results
from benchmarks.benchmark_figures import Direction, Execution, Figure, Goal, PublishedValue, figure_of_repeats
from benchmarks.overlap.overlap_forecast import WORKERS
from benchmarks.overlap.overlap_workload import BANDWIDTHS, NETWORKS
from potluck.loops.parts.model_transfer import DuplexTransfer
from potluck.report.svg_chart import Chart, ChartSeries
from potluck.units import format_percent

__all__ = [
    "TITLES",
    "Case",
    "Row",
    "build_charts",
    "case_rows",
    "cases_of_network",
    "compute_figures",
    "duplex_gains",
    "forecast_cases",
    "forecast_deviation",
    "largest_reduction",
    "simulated_rows",
    "time_reduction",
]

Row = Mapping[str, Any]
Case = Mapping[str, Any]


def forecast_cases(results: Results) -> list[Case]:
    """The forecast cases among the pieces: a case is a network and a batch size, each of its rows one bandwidth."""
    return [result for result in results.values() if "network" in result]


def cases_of_network(cases: Sequence[Case], network: str) -> list[Case]:
    return [case for case in cases if case["network"] == network]


def case_rows(cases: Sequence[Case]) -> Iterator[Row]:
    return (row for case in cases for row in case["rows"])


def time_reduction(row: Row, strategy: str) -> float:
    """The fraction by which a strategy shortens the sequential iteration."""
    return float(1 - row["iteration_s"][strategy] / row["iteration_s"]["sequential"])


def largest_reduction(cases: Sequence[Case], strategy: str) -> float:
    return max(time_reduction(row, strategy) for row in case_rows(cases))


def duplex_gains(cases: Sequence[Case]) -> list[float]:
    """The fractions by which duplex shortens the optimal iteration, wherever it was forecast."""
    return [float(1 - row["duplex_s"] / row["iteration_s"]["optimal"]) for row in case_rows(cases) if "duplex_s" in row]


def simulated_rows(results: Results) -> list[Row]:
    """The rows that ran in the simulated world."""
    return [row for result in results.values() if "simulated" in result for row in result["rows"]]


def forecast_deviation(row: Row) -> float:
    """How far a simulated round is from its forecast, as a fraction of it."""
    return float(abs(row["simulated_s"] / row["forecast_s"] - 1))


_PAPER = "Cai et al. 2022, IEEE JSAC 40(2), arXiv:2101.07968: MXNet, 8 workers, 4 servers, RTT about 10 ms"
_BASELINES = ("sequential", "layer-by-layer", "ibatch", "mg-wfbp")
_ROUNDING = 1e-12


def compute_figures(results: Results) -> list[Figure]:
    cases = forecast_cases(results)
    return [
        figure_of_repeats(
            "planning time, 152 layers", "ms", results["planning"]["milliseconds"],
            published=PublishedValue(11.59, _PAPER), goal=Goal("≤", 0.1), executed="measured", tuned_alike=None,
        ),
        *_reduction_figures(cases),
        *_sensitivity_figures(results["other speeds"]),
        _never_above_figure(cases),
        *_speed_up_figures(cases),
        *_duplex_figures(cases),
        *_simulated_figures(simulated_rows(results)),
        *_device_figures(cases),
    ]  # fmt: skip


def _reduction_figures(cases: Sequence[Case]) -> Iterator[Figure]:
    yield _percent_figure(
        "largest reduction compared with sequential", largest_reduction(cases, "optimal"), 41.92, Goal("≥", 41.9)
    )
    published = {"resnet152": 41.92, "vgg19": 41.10}
    for network, title in NETWORKS.items():
        yield _percent_figure(
            f"  {title}",
            largest_reduction(cases_of_network(cases, network), "optimal"),
            published.get(network),
            better="more",
        )
    inception = cases_of_network(cases, "inception-v4")
    for strategy, value in (("layer-by-layer", 35.25), ("ibatch", 24.22)):
        name = f"  Inception-v4, {TITLES[strategy]}"
        yield _percent_figure(name, largest_reduction(inception, strategy), value, better="more")


def _sensitivity_figures(result: Mapping[str, Any]) -> Iterator[Figure]:
    """The device speed is our choice, so the slowest and the fastest admissible ones are shown too."""
    for end, flops in zip(("slowest", "fastest"), result["flops"], strict=True):
        name = f"  on the {end} device that balances in 1 to 5 Gbit/s"
        yield _percent_figure(name, result[end], note=f"{flops / 1e9:.0f} GFLOP/s")


def _never_above_figure(cases: Sequence[Case]) -> Figure:
    above = sum(
        row["iteration_s"]["optimal"] > row["iteration_s"][baseline] * (1 + _ROUNDING)
        for row in case_rows(cases)
        for baseline in _BASELINES
    )
    compared = sum(1 for _ in case_rows(cases)) * len(_BASELINES)
    name = f"cases in which optimal is slower than a baseline, of {compared}"
    return Figure(name=name, unit="", measured=above, goal=Goal("≤", 0), executed="forecast")


def _speed_up_figures(cases: Sequence[Case]) -> Iterator[Figure]:
    """At the highest bandwidth, where the round trips remain."""
    goal = Goal("≥", 7.2)
    for strategy, value in (("optimal", 7.2), ("ibatch", 6.2), ("layer-by-layer", 5.4)):
        speed_ups = [WORKERS * case["compute_s"] / case["rows"][-1]["together_s"][strategy] for case in cases]
        yield Figure(
            name=f"speed-up of 8 workers over one without transfers, {TITLES[strategy]}, mean at 10 Gbit/s", unit="x",
            measured=sum(speed_ups) / len(speed_ups), published=PublishedValue(value, _PAPER),
            goal=goal if strategy == "optimal" else None, better="more",
            note=_extremes_note(cases, speed_ups), executed="forecast",
        )  # fmt: skip
    last = [case["rows"][-1] for case in cases]
    same = [WORKERS * row["iteration_s"]["optimal"] / row["together_s"]["optimal"] for row in last]
    name = "speed-up of 8 workers over one with the same link, optimal, lowest at 10 Gbit/s"
    yield Figure(
        name=name, unit="x", measured=min(same), goal=goal, note=_extremes_note(cases, same), executed="forecast"
    )
    yield Figure(
        name="lowest bandwidth with a mean speed-up of 7.2x over one without transfers",
        unit="Gbit/s",
        measured=_lowest_bandwidth(cases, goal),
        note="10 Gbit/s is the most favourable of the ten bandwidths",
        executed="forecast",
    )


def _lowest_bandwidth(cases: Sequence[Case], goal: Goal) -> float:
    """Infinite if no bandwidth reaches the goal."""
    for index, bandwidth in enumerate(BANDWIDTHS):
        speed_ups = [WORKERS * case["compute_s"] / case["rows"][index]["together_s"]["optimal"] for case in cases]
        if goal.is_met_by(sum(speed_ups) / len(speed_ups)):
            return float(bandwidth / 1e9)
    return math.inf


def _extremes_note(cases: Sequence[Case], speed_ups: Sequence[float]) -> str:
    low, high = (speed_ups.index(pick(speed_ups)) for pick in (min, max))
    return ", ".join(
        f"{speed_ups[index]:.2f}x {NETWORKS[cases[index]['network']]} batch {cases[index]['batch']}"
        for index in (low, high)
    )


def _duplex_figures(cases: Sequence[Case]) -> Iterator[Figure]:
    yield _percent_figure(
        "reduction of duplex compared with optimal, communication ≥ computation, lowest",
        min(duplex_gains(cases)),
        goal=Goal("≥", 15.0),
    )
    for network, title in NETWORKS.items():
        own = cases_of_network(cases, network)
        gains = sorted(duplex_gains(own))
        largest = own[0]["largest_layer_share"]
        best, layer = format_percent(gains[-1]), format_percent(largest, 0)
        note = f"up to {best}; the largest layer has {layer} of the bytes{_split_note(largest)}"
        yield _percent_figure(f"  {title}", gains[0], note=note)


def _split_note(fraction: float) -> str:
    return (
        " and is split"
        if DuplexTransfer.split_layer_fraction is not None and fraction > DuplexTransfer.split_layer_fraction
        else ""
    )


def _simulated_figures(rows: Sequence[Row]) -> Iterator[Figure]:
    """How far rounds in the simulated world are from their forecast."""
    goal = Goal("≤", 5.0)
    kinds = {
        "with a barrier": [row for row in rows if row["recipe"] != "duplex" and row["workers"] == 1],
        "duplex": [row for row in rows if row["recipe"] == "duplex"],
        f"{WORKERS} workers, optimal, at 10 Gbit/s": [row for row in rows if row["workers"] > 1],
    }
    for kind, rows_of in kinds.items():
        note = f"{len(rows_of)} cases"
        if kind == "duplex":
            note += "; a device plans with costs rounded to two digits and tries fewer cuts than the forecast"
        name = f"simulated rounds compared with the forecast, {kind}, largest deviation"
        yield _percent_figure(name, max(map(forecast_deviation, rows_of)), None, goal, note, "simulated")


def _device_figures(cases: Sequence[Case]) -> Iterator[Figure]:
    balances = [case["balance_gbit_s"] for case in cases]
    peaks = [max(case["rows"], key=lambda row: time_reduction(row, "optimal"))["gbit_s"] for case in cases]
    note = f"communication and computation balance from {min(balances):.2f} to {max(balances):.2f} Gbit/s"
    yield Figure(
        name="device speed", unit="GFLOP/s", measured=cases[0]["device_flops"] / 1e9, note=note, executed="forecast"
    )
    yield Figure(
        name="bandwidth at which the gain peaks, lowest",
        unit="Gbit/s",
        measured=min(peaks),
        published=PublishedValue(1, _PAPER),
        executed="forecast",
    )
    yield Figure(
        name="bandwidth at which the gain peaks, highest",
        unit="Gbit/s",
        measured=max(peaks),
        published=PublishedValue(5, _PAPER),
        executed="forecast",
    )


def _percent_figure(
    name: str,
    fraction: float,
    published: float | None = None,
    goal: Goal | None = None,
    note: str = "",
    executed: Execution = "forecast",
    better: Direction | None = None,
) -> Figure:
    source = None if published is None else PublishedValue(published, _PAPER)
    return Figure(
        name=name, unit="%", measured=100 * fraction, executed=executed, published=source, goal=goal, better=better,
        note=note,
    )  # fmt: skip


TITLES = {"layer-by-layer": "layer by layer", "ibatch": "iBatch", "mg-wfbp": "MG-WFBP", "optimal": "optimal"}
_BATCH = 32
_FLOOR = -50.0  # lower values are drawn at it
_MARKS = {"resnet152": [("published 41.92 %", 41.92)], "vgg19": [("published 41.10 %", 41.10)]}


def build_charts(results: Results) -> Sequence[Chart]:
    return [_network_chart(results[f"{network}/{_BATCH}"]) for network in NETWORKS]


def _network_chart(case: Case) -> Chart:
    network = case["network"]
    return Chart(
        title=f"{NETWORKS[network]}, batch {case['batch']}, forecast",
        y_label="iteration time saved, % of sequential",
        x_label="Gbit/s",
        series=[*(_strategy_series(case, strategy) for strategy in TITLES), _duplex_series(case)],
        x_scale="log",
        marks=_MARKS.get(network, []),
    )


def _strategy_series(case: Case, strategy: str) -> ChartSeries:
    percentages = [max(_FLOOR, 100 * time_reduction(row, strategy)) for row in case["rows"]]
    return ChartSeries(TITLES[strategy], percentages, [row["gbit_s"] for row in case["rows"]])


def _duplex_series(case: Case) -> ChartSeries:
    rows = [row for row in case["rows"] if "duplex_s" in row]
    percentages = [100 * (1 - row["duplex_s"] / row["iteration_s"]["sequential"]) for row in rows]
    return ChartSeries("duplex", percentages, [row["gbit_s"] for row in rows])
