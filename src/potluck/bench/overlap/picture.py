"""The cut of each strategy over the bandwidth, one chart per network."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.bench.chart import Chart, Series
from potluck.bench.experiment import Results
from potluck.bench.overlap.cases import Case, cut
from potluck.bench.overlap.workload import NETWORKS

__all__ = ["TITLES", "charts"]

TITLES = {"layer-by-layer": "layer by layer", "ibatch": "iBatch", "mg-wfbp": "MG-WFBP", "optimal": "optimal"}
_BATCH = 32
_FLOOR = -50.0  # what is worse is drawn here
_MARKS = {"resnet152": [("published 41.92 %", 41.92)], "vgg19": [("published 41.10 %", 41.10)]}


def charts(results: Results) -> Sequence[Chart]:
    return [_chart(results[f"{network}/{_BATCH}"]) for network in NETWORKS]


def _chart(case: Case) -> Chart:
    network = case["network"]
    return Chart(
        title=f"{NETWORKS[network]}, batch {case['batch']}",
        y_label="% below sequential",
        x_label="Gbit/s",
        series=[*(_line(case, strategy) for strategy in TITLES), _duplex(case)],
        x_scale="log",
        marks=_MARKS.get(network, []),
    )


def _line(case: Case, strategy: str) -> Series:
    shares = [max(_FLOOR, 100 * cut(row, strategy)) for row in case["rows"]]
    return Series(TITLES[strategy], shares, [row["gbit_s"] for row in case["rows"]])


def _duplex(case: Case) -> Series:
    found = [row for row in case["rows"] if "duplex_s" in row]
    shares = [100 * (1 - row["duplex_s"] / row["iteration_s"]["sequential"]) for row in found]
    return Series("duplex", shares, [row["gbit_s"] for row in found])
