"""`streaming`: the benchmark of ScaDLES: time to target, buffer sizes, skewed classes, compression."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_catalogue import CATALOGUE
from benchmarks.benchmark_figures import Figure
from benchmarks.measured_code import SIMULATED_PACKAGE
from benchmarks.streaming import compression, rate_race, rate_tuning, skewed_classes
from potluck.report.svg_chart import Chart

__all__ = ["BENCHMARK"]


def _declare_pieces(context: BenchmarkContext) -> Sequence[BenchmarkPiece]:
    return [
        *rate_tuning.declare_pieces(context),
        *rate_race.declare_pieces(context),
        *skewed_classes.declare_pieces(context),
        *compression.declare_pieces(context),
    ]


def _compute_figures(results: Results) -> Sequence[Figure]:
    return [
        *rate_race.compute_figures(results),
        *rate_tuning.compute_figures(results),
        *skewed_classes.compute_figures(results),
        *compression.compute_figures(results),
    ]


def _build_charts(results: Results) -> Sequence[Chart]:
    return [*rate_race.build_charts(results), *compression.build_charts(results)]


BENCHMARK = Benchmark(
    name="streaming",
    summary=CATALOGUE["streaming"].summary,
    pieces=_declare_pieces,
    figures=_compute_figures,
    charts=_build_charts,
    datasets=lambda context: () if context.quick else ("cifar10", "cifar100"),
    notes=(
        "The trained network has three convolutions with batch norm and global average pooling (24 k weights), on"
        " CIFAR-10 or CIFAR-100; time and bytes are those of ResNet-152 for 32×32 on a GPU of a K80 with 5 Gbit/s."
        " Published accuracies are top-5; targets are top-1.",
        "All recipes train for the same number of epochs, with a learning rate that falls over the whole run. The base"
        " rate of each recipe is the best of four in short runs with another seed.",
        "Stream rates beyond the eight or ten in the authors' code are drawn from the paper's distributions, none"
        " slower than the authors' slowest (12 samples/s in S1).",
        "Buffers are those of scadles with either policy at the round in which scadles reaches the target.",
        "Volume is what devices push or pull, indices included. Codecs are compared on an MLP on the digits, 400 rounds"
        " of 16 devices, which is until convergence, and on LeNet-5 on CIFAR-10, 1,200 rounds (12 epochs).",
        "A push counts as compressed if it has less than half of the dense bytes.",
    ),
    measures=SIMULATED_PACKAGE,
)
