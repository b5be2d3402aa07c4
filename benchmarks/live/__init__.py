"""`live`: overhead of live rounds; overlap and faults over links that the kernel shapes; accuracy of predictions."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_catalogue import CATALOGUE
from benchmarks.benchmark_figures import Figure, figure_of_repeats
from benchmarks.live import kernel_links, lab_accuracy, network_faults
from benchmarks.live.live_trial import empty_job, measure_rounds
from benchmarks.measured_code import LIVE_PACKAGE
from potluck.report.svg_chart import Chart

__all__ = ["BENCHMARK"]

_DEVICES = 10


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    return [
        *_empty_pieces(context),
        *kernel_links.declare_pieces(context),
        *network_faults.declare_pieces(context),
        *lab_accuracy.declare_pieces(context),
    ]


def _empty_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    repeats, rounds = (1, 20) if context.quick else (5, 200)
    return [
        BenchmarkPiece(f"empty/{repeat}", {"rounds": rounds}, lambda: _measure_empty(rounds), 10.0 + 0.1 * rounds)
        for repeat in range(repeats)
    ]


def _measure_empty(rounds: int) -> dict[str, float]:
    return {"measured_s": statistics.median(measure_rounds(empty_job(_DEVICES, rounds), emulate_fleet=False))}


def compute_figures(results: Results) -> list[Figure]:
    return [
        *_empty_figures(results),
        *kernel_links.compute_figures(results),
        *network_faults.compute_figures(results),
        *lab_accuracy.compute_figures(results),
    ]


def _empty_figures(results: Results) -> Iterator[Figure]:
    seconds = [float(result["measured_s"]) for name, result in results.items() if name.startswith("empty/")]
    yield figure_of_repeats(
        f"round of {_DEVICES} devices, 1 MiB model, almost no training", "ms", [1e3 * each for each in seconds],
        executed="live", note="beside Flower: `python -m benchmarks.peers live`",
    )  # fmt: skip


def build_charts(results: Results) -> Sequence[Chart]:
    return [*kernel_links.build_charts(results), *lab_accuracy.build_charts(results)]


BENCHMARK = Benchmark(
    name="live",
    summary=CATALOGUE["live"].summary,
    pieces=declare_pieces,
    figures=compute_figures,
    charts=build_charts,
    notes=(
        "Every device is a process on this machine.",
        "Kernel-shaped links: coordinator and devices are in network namespaces of their own, `tc tbf` limits each"
        " direction of each link, and nothing is slowed down by us. Iterations are medians of a run; a cut is relative"
        " to the sequential run beside it. All use the costs that devices measure; none has anything to tune.",
        "Every rate is scanned once; the middle one of each network, where transfers take about as long as"
        " computation, has three repeats and the baselines too. Ten rounds count, after the first two; after eight"
        " with duplex, whose plans settle later. The quoted cut is that of a network, rate and recipe that was chosen"
        " beforehand, since the best of many is partly best by chance. The best baseline has the lowest mean.",
        "Faults: three devices behind 100 Mbit/s; every fault hits a run of its own. The time ends with the first"
        " commit that does not need the device, which then returns. Packets are dropped at random by the kernel.",
        "Lab: links and speeds are emulated by our own transport and throttle. The prediction is the same job in the"
        " simulated world. Three devices of 20, 30 and 45 MFLOP/s behind 4 Mbit/s; mean time of a round or batch,"
        " without the first.",
    ),
    measures=LIVE_PACKAGE,
)
