"""Real networks over links that the kernel shapes: how much of an iteration overlapped transfers save, ours and others.

Coordinator and devices are unthrottled processes in network namespaces; layers take the time that they take on this
machine, and `tc tbf` limits what each device sends and receives.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.benchmark import BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_figures import Figure, Goal, PublishedValue, figure_of_repeats, interval_of_repeats
from benchmarks.faults.process_fleet import FleetNetwork, ProcessFleet
from benchmarks.peers.potluck_commands import read_rounds
from benchmarks.shaped_network import ShapedNetwork, missing_requirement
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = ["CASES", "HEADLINE", "LinkCase", "LinkCell", "build_charts", "compute_figures", "declare_pieces", "link_job"]

_PREFIX = "links"
_SEQUENTIAL = "sync-sgd"
_OURS = ("dynacomm", "duplex")
_BASELINES = (_SEQUENTIAL, "layer-by-layer", "ibatch", "mg-wfbp")
_SCANNED = (_SEQUENTIAL, *_OURS)  # once at every rate
_WARM_UP_ROUNDS = {"duplex": 8}  # until its plans settle; others need two, while plans still follow guessed costs
_PUBLISHED = PublishedValue(41.92, "Cai et al. 2022, arXiv:2101.07968: ResNet-152, 8 workers on MXNet")
_DEVICES = 2
_COORDINATOR_RATE = "1gbit"
_ROUND_TIMEOUT_S = 60.0
_START_S = 4.0  # of a run's processes, about
_OVERLAPPED = 0.75  # of a sequential iteration, about


class LinkCase(NamedTuple):
    """A network with its batch and the rates of the devices' links, around the one that balances its computation."""

    network: str
    title: str
    batch: int
    mbit: Sequence[int]
    iteration_s: float  # sequential, at the middle rate, about

    @property
    def middle_mbit(self) -> int:
        return self.mbit[len(self.mbit) // 2]


class LinkCell(NamedTuple):
    """What one iteration time belongs to."""

    network: str
    mbit: int
    recipe: str


CASES = {
    "resnet20": LinkCase("resnet20", "ResNet-20", 32, (10, 20, 40), 1.4),
    "resnet18-cifar": LinkCase("resnet18-cifar", "ResNet-18", 8, (200, 400, 800), 3.4),
    "vgg9": LinkCase("vgg9", "VGG-9", 32, (50, 100, 200), 3.2),
}
HEADLINE = LinkCell("vgg9", 100, "duplex")  # fixed before its repeats were measured, from trials that are not quoted


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """Every rate is scanned once; the middle one of each network has more repeats, and the baselines.

    Repeats and recipes alternate, so that other load on the machine affects all of them.
    """
    repeats, rounds = (1, 4) if context.quick else (3, 10)
    cases = [CASES["resnet20"]._replace(mbit=(20,))] if context.quick else list(CASES.values())
    return [
        _link_piece(case, LinkCell(case.network, mbit, recipe), rounds, repeat)
        for repeat in range(repeats)
        for case in cases
        for mbit in (case.mbit if repeat == 0 else (case.middle_mbit,))
        for recipe in ((*_BASELINES, *_OURS) if mbit == case.middle_mbit else _SCANNED)
    ]


def _link_piece(case: LinkCase, cell: LinkCell, rounds: int, repeat: int) -> BenchmarkPiece:
    warm_up = _WARM_UP_ROUNDS.get(cell.recipe, 2)
    overlap = 1.0 if cell.recipe == _SEQUENTIAL else _OVERLAPPED
    iteration_s = overlap * case.iteration_s * (1 + case.middle_mbit / cell.mbit) / 2
    return BenchmarkPiece(
        f"{_PREFIX}/{cell.network}/{cell.mbit}/{cell.recipe}/{repeat}",
        {**cell._asdict(), "batch": case.batch, "rounds": rounds, "warm_up": warm_up, "devices": _DEVICES},
        partial(_measure_iterations, case, cell, warm_up, rounds),
        _START_S + (warm_up + rounds) * iteration_s,
    )


def _measure_iterations(case: LinkCase, cell: LinkCell, warm_up: int, rounds: int) -> dict[str, Any]:
    """Seconds of every round after those of the warm-up."""
    if missing := missing_requirement():
        return {"skipped": missing}
    rates = [_COORDINATOR_RATE, *[f"{cell.mbit}mbit"] * _DEVICES]
    job, count = link_job(case, cell.mbit, cell.recipe), warm_up + rounds
    with tempfile.TemporaryDirectory(prefix="potluck-links-") as name, ShapedNetwork(rates) as network:
        options = ("--threads", "1")
        with ProcessFleet(Path(name), job, network=FleetNetwork(network), join_options=options) as fleet:
            fleet.wait_committed(count, _ROUND_TIMEOUT_S * count)
            ends = [committed.end for committed in read_rounds(Path(name))][warm_up - 1 : count]
    return {"seconds": [later - earlier for earlier, later in pairwise(ends)]}


def link_job(case: LinkCase, mbit: int, recipe: str) -> dict[str, Any]:
    """The fleet file states the links' true rates; the speed is a guess, which the first rounds correct."""
    link = {"up": f"{mbit} Mbit/s", "down": f"{mbit} Mbit/s", "latency": "200 us"}
    data = {"kind": "synthetic", "shape": [3, 32, 32], "train": 4 * _DEVICES * case.batch, "test": 8}
    return {
        "recipe": recipe,
        "evaluate": 0,
        "checkpoint": 0,
        "task": {"model": case.network, "data": data},
        "rounds": {"batching": {"kind": "fixed", "size": case.batch}, "least": _DEVICES},
        "stop": {"rounds": 10**6},
        "fleet": {
            "devices": [{"name": "d", "count": _DEVICES, "flops": "10 GFLOP/s", "link": link}],
            "coordinator": {"link": "server"},
        },
    }


# --- figures ----------------------------------------------------------------------------------------------------------


def compute_figures(results: Results) -> Iterator[Figure]:
    cells = [cell for cell in _measured_cells(results) if _iteration_times(results, cell)]
    if not cells:
        reason = next((result["skipped"] for result in results.values() if "skipped" in result), "not measured")
        yield Figure(name="kernel-shaped links: skipped", unit="", measured=0.0, executed="live", note=reason)
        return
    ours = [cell for cell in cells if cell.recipe in _OURS]
    yield _headline_figure(results, HEADLINE if HEADLINE in ours else ours[-1])
    for cell in ours:
        mine, sequential = (statistics.fmean(_iteration_times(results, each)) for each in (cell, _sequential(cell)))
        note = f"{mine:.3g} s instead of {sequential:.3g} s"
        yield figure_of_repeats(f"  {_title(cell)}", "%", _cuts(results, cell), executed="live", note=note)
    yield from _baseline_figures(results, ours)


def _headline_figure(results: Results, cell: LinkCell) -> Figure:
    return figure_of_repeats(
        "kernel-shaped links: cut of the iteration time", "%", _cuts(results, cell), executed="live",
        published=_PUBLISHED, goal=Goal("≥", 41.9), tuned_alike=True,
        note=f"{_title(cell)}, which was chosen beforehand; all are below",
    )  # fmt: skip


def _baseline_figures(results: Results, ours: Sequence[LinkCell]) -> Iterator[Figure]:
    """Where every baseline was measured: our iteration time over that of the baseline with the lowest mean."""
    figures = {cell: figure for cell in ours if (figure := _figure_over_baselines(results, cell, f"  {_title(cell)}"))}
    if figures:
        worst = max(figures, key=lambda cell: figures[cell].measured)
        name = "kernel-shaped links: iteration time over that of the best baseline, worst of ours"
        first = _figure_over_baselines(results, worst, name)
        assert first is not None
        note = f"{_title(worst)}; {first.note}; all are below"
        yield msgspec.structs.replace(first, goal=Goal("≤", 1.0), note=note)
        yield from figures.values()


def _figure_over_baselines(results: Results, cell: LinkCell, name: str) -> Figure | None:
    """None if a baseline is missing."""
    baselines = {recipe: _iteration_times(results, cell._replace(recipe=recipe)) for recipe in _BASELINES}
    if not all(baselines.values()):
        return None
    best = min(baselines, key=lambda recipe: statistics.fmean(baselines[recipe]))
    pairs = zip(_iteration_times(results, cell), baselines[best], strict=False)
    ratios = [mine / theirs for mine, theirs in pairs]
    note = f"the best baseline is {best}, {statistics.fmean(baselines[best]):.3g} s"
    return figure_of_repeats(name, "x", ratios, executed="live", note=note)


def _measured_cells(results: Results) -> list[LinkCell]:
    keys = [name.split("/") for name in results if name.startswith(f"{_PREFIX}/")]
    return list(dict.fromkeys(LinkCell(key[1], int(key[2]), key[3]) for key in keys))


def _sequential(cell: LinkCell) -> LinkCell:
    return cell._replace(recipe=_SEQUENTIAL)


def _title(cell: LinkCell) -> str:
    return f"{CASES[cell.network].title}, {cell.mbit} Mbit/s, {cell.recipe}"


def _iteration_times(results: Results, cell: LinkCell) -> list[float]:
    """The median iteration of each repeat."""
    prefix = f"{_PREFIX}/{cell.network}/{cell.mbit}/{cell.recipe}/"
    runs = [result for name, result in results.items() if name.startswith(prefix) and "seconds" in result]
    return [statistics.median(run["seconds"]) for run in runs]


def _cuts(results: Results, cell: LinkCell) -> list[float]:
    """By how many percent each repeat is shorter than the sequential one beside it."""
    ours, theirs = (_iteration_times(results, each) for each in (cell, _sequential(cell)))
    return [100 * (1 - mine / sequential) for mine, sequential in zip(ours, theirs, strict=False)]


def build_charts(results: Results) -> list[Chart]:
    """One chart per network: iteration time over the rate of the link."""
    networks = list(dict.fromkeys(cell.network for cell in _measured_cells(results)))
    charts = [_network_chart(results, network) for network in networks]
    return [chart for chart in charts if chart.series]


def _network_chart(results: Results, network: str) -> Chart:
    """The baselines that were measured at one rate are single points."""
    rates = sorted({cell.mbit for cell in _measured_cells(results) if cell.network == network})
    series = []
    for recipe in (*_BASELINES, *_OURS):
        runs = {mbit: times for mbit in rates if (times := _iteration_times(results, LinkCell(network, mbit, recipe)))}
        if runs:
            means = [statistics.fmean(times) for times in runs.values()]
            series.append(ChartSeries(recipe, means, [float(mbit) for mbit in runs], _whiskers(runs.values())))
    return Chart(
        title=f"{CASES[network].title}, batch {CASES[network].batch}, {_DEVICES} devices, links shaped by the kernel",
        y_label="seconds per iteration", x_label="Mbit/s", series=series, x_scale="log",
    )  # fmt: skip


def _whiskers(runs: Iterable[Sequence[float]]) -> list[tuple[float, float]]:
    """The interval at every rate if one of them was repeated; of a single run, its value."""
    intervals = [interval_of_repeats(times) for times in runs]
    return [(each.low, each.high) for each in intervals] if any(each.repeats > 1 for each in intervals) else []
