"""Real networks over links that the kernel shapes: how much of an iteration overlapped transfers save.

Coordinator and devices are unthrottled processes in network namespaces; layers take the time that they take on this
machine, and `tc tbf` limits what each device sends and receives.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.benchmark import BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_figures import Figure, Goal, PublishedValue, figure_of_repeats, interval_of_repeats
from benchmarks.faults.process_fleet import FleetNetwork, ProcessFleet
from benchmarks.peers.potluck_commands import read_rounds
from benchmarks.shaped_network import ShapedNetwork, missing_requirement
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = ["LinkCase", "build_charts", "compute_figures", "declare_pieces", "link_job"]

_PREFIX = "links"
_RECIPES = ("sync-sgd", "dynacomm", "duplex")
_PUBLISHED = PublishedValue(41.92, "Cai et al. 2022, arXiv:2101.07968: ResNet-152, 8 workers on MXNet")
_DEVICES = 2
_COORDINATOR_RATE = "1gbit"
_ROUND_TIMEOUT_S = 60.0


class LinkCase(NamedTuple):
    """A network with its batch and the rates of the devices' links, around the one that balances its computation."""

    network: str
    title: str
    batch: int
    mbit: Sequence[int]


CASES = {
    "resnet20": LinkCase("resnet20", "ResNet-20", 32, (10, 20, 40)),
    "resnet18-cifar": LinkCase("resnet18-cifar", "ResNet-18", 8, (200, 400, 800)),
    "vgg9": LinkCase("vgg9", "VGG-9", 32, (50, 100, 200)),
}


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """Repeats and recipes alternate, so that other load on the machine affects all of them."""
    repeats, rounds = (1, 4) if context.quick else (3, 15)
    cases = [CASES["resnet20"]._replace(mbit=(20,))] if context.quick else list(CASES.values())
    return [
        BenchmarkPiece(
            f"{_PREFIX}/{case.network}/{mbit}/{recipe}/{repeat}",
            {"case": list(case), "mbit": mbit, "recipe": recipe, "rounds": rounds, "devices": _DEVICES},
            partial(_measure_iterations, case, mbit, recipe, rounds),
            15.0 + 2.0 * rounds,
        )
        for repeat in range(repeats)
        for case in cases
        for mbit in case.mbit
        for recipe in _RECIPES
    ]


def _measure_iterations(case: LinkCase, mbit: int, recipe: str, rounds: int) -> dict[str, Any]:
    """Seconds of every round but the first two, while plans still follow guessed costs."""
    if missing := missing_requirement():
        return {"skipped": missing}
    rates = [_COORDINATOR_RATE, *[f"{mbit}mbit"] * _DEVICES]
    job = link_job(case, mbit, recipe)
    with tempfile.TemporaryDirectory(prefix="potluck-links-") as name, ShapedNetwork(rates) as network:
        options = ("--threads", "1")
        with ProcessFleet(Path(name), job, network=FleetNetwork(network), join_options=options) as fleet:
            fleet.wait_committed(rounds + 2, _ROUND_TIMEOUT_S * (rounds + 2))
            ends = [committed.end for committed in read_rounds(Path(name))][1 : rounds + 2]
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
    cuts = {key: _cuts(results, *key) for key in _measured_cases(results)}
    cuts = {key: values for key, values in cuts.items() if values}
    if not cuts:
        reason = next((result["skipped"] for result in results.values() if "skipped" in result), "not measured")
        yield Figure(name="kernel-shaped links: skipped", unit="", measured=0.0, executed="live", note=reason)
        return
    best = max(cuts, key=lambda key: statistics.fmean(cuts[key]))
    yield figure_of_repeats(
        "kernel-shaped links: largest cut of the iteration time", "%", cuts[best], executed="live",
        published=_PUBLISHED, goal=Goal("≥", 41.9), tuned_alike=True,
        note=f"{_title(*best)}; the best of {len(cuts)}, all are below",
    )  # fmt: skip
    for key, values in cuts.items():
        network, mbit, recipe = key
        ours, sequential = (
            statistics.fmean(_iteration_times(results, network, mbit, each)) for each in (recipe, "sync-sgd")
        )
        note = f"{ours:.3g} s instead of {sequential:.3g} s"
        yield figure_of_repeats(f"  {_title(*key)}", "%", values, executed="live", note=note)


def _measured_cases(results: Results) -> list[tuple[str, int, str]]:
    keys = [name.split("/") for name in results if name.startswith(f"{_PREFIX}/")]
    return list(dict.fromkeys((key[1], int(key[2]), key[3]) for key in keys if key[3] != "sync-sgd"))


def _title(network: str, mbit: int, recipe: str) -> str:
    return f"{CASES[network].title}, {mbit} Mbit/s, {recipe}"


def _iteration_times(results: Results, network: str, mbit: int, recipe: str) -> list[float]:
    """The median iteration of each repeat."""
    prefix = f"{_PREFIX}/{network}/{mbit}/{recipe}/"
    runs = [result for name, result in results.items() if name.startswith(prefix) and "seconds" in result]
    return [statistics.median(run["seconds"]) for run in runs]


def _cuts(results: Results, network: str, mbit: int, recipe: str) -> list[float]:
    """By how many percent each repeat is shorter than the sequential one beside it."""
    ours, theirs = (_iteration_times(results, network, mbit, each) for each in (recipe, "sync-sgd"))
    return [100 * (1 - mine / sequential) for mine, sequential in zip(ours, theirs, strict=False)]


def build_charts(results: Results) -> list[Chart]:
    """One chart per network: iteration time over the rate of the link."""
    networks = list(dict.fromkeys(network for network, _, _ in _measured_cases(results)))
    charts = [_network_chart(results, network) for network in networks]
    return [chart for chart in charts if all(series.ys for series in chart.series)]


def _network_chart(results: Results, network: str) -> Chart:
    rates = sorted({mbit for name, mbit, _ in _measured_cases(results) if name == network})
    series = []
    for recipe in _RECIPES:
        runs = {mbit: times for mbit in rates if (times := _iteration_times(results, network, mbit, recipe))}
        intervals = [interval_of_repeats(times) for times in runs.values()]
        whiskers = [(each.low, each.high) for each in intervals] if all(each.repeats > 1 for each in intervals) else []
        means = [statistics.fmean(times) for times in runs.values()]
        series.append(ChartSeries(recipe, means, [float(mbit) for mbit in runs], whiskers))
    return Chart(
        title=f"{CASES[network].title}, batch {CASES[network].batch}, {_DEVICES} devices, links shaped by the kernel",
        y_label="seconds per iteration", x_label="Mbit/s", series=series, x_scale="log",
    )  # fmt: skip
