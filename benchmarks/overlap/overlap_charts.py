"""The cut of each strategy over the bandwidth, one chart per network."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.benchmark import Results
from benchmarks.overlap.overlap_cases import Case, time_reduction
from benchmarks.overlap.overlap_workload import NETWORKS
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = ["TITLES", "build_charts"]

TITLES = {"layer-by-layer": "layer by layer", "ibatch": "iBatch", "mg-wfbp": "MG-WFBP", "optimal": "optimal"}
_BATCH = 32
_FLOOR = -50.0  # what is worse is drawn here
_MARKS = {"resnet152": [("published 41.92 %", 41.92)], "vgg19": [("published 41.10 %", 41.10)]}


def build_charts(results: Results) -> Sequence[Chart]:
    return [_network_chart(results[f"{network}/{_BATCH}"]) for network in NETWORKS]


def _network_chart(case: Case) -> Chart:
    network = case["network"]
    return Chart(
        title=f"{NETWORKS[network]}, batch {case['batch']}",
        y_label="% below sequential",
        x_label="Gbit/s",
        series=[*(_strategy_series(case, strategy) for strategy in TITLES), _duplex_series(case)],
        x_scale="log",
        marks=_MARKS.get(network, []),
    )


def _strategy_series(case: Case, strategy: str) -> ChartSeries:
    shares = [max(_FLOOR, 100 * time_reduction(row, strategy)) for row in case["rows"]]
    return ChartSeries(TITLES[strategy], shares, [row["gbit_s"] for row in case["rows"]])


def _duplex_series(case: Case) -> ChartSeries:
    found = [row for row in case["rows"] if "duplex_s" in row]
    shares = [100 * (1 - row["duplex_s"] / row["iteration_s"]["sequential"]) for row in found]
    return ChartSeries("duplex", shares, [row["gbit_s"] for row in found])
