"""`streaming`: training on data that streams in (ScaDLES): time, buffers, skewed classes, compression."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.bench.chart import Chart
from potluck.bench.experiment import Benchmark, Context, Piece, Results
from potluck.bench.figures import Figure
from potluck.bench.streaming import compression, rates, remedies

__all__ = ["BENCHMARK"]


def _pieces(context: Context) -> Sequence[Piece]:
    return [*rates.pieces(context), *remedies.pieces(context), *compression.pieces(context)]


def _figures(results: Results) -> Sequence[Figure]:
    return [*rates.figures(results), *remedies.figures(results), *compression.figures(results)]


def _charts(results: Results) -> Sequence[Chart]:
    return [*rates.charts(results), *compression.charts(results)]


BENCHMARK = Benchmark(
    name="streaming",
    summary="training on streams (ScaDLES): time to target, buffers, skewed classes, compression",
    pieces=_pieces,
    figures=_figures,
    charts=_charts,
    needs=lambda context: () if context.quick else ("cifar10",),
    notes=(
        "Really trained: three convolutions with batch norm (34 k weights) on CIFAR-10; time and bytes are those of"
        " ResNet-152 for 32×32 on a GPU of a K80 with 5 Gbit/s. Accuracy is top-1; the paper's is top-5.",
        "All recipes go through the data equally often, with a learning rate that falls over the whole run.",
        "Stream rates beyond the eight or ten that the authors' code shows are drawn from the paper's distributions,"
        " none below 8 samples/s: in S1 one of them is at that bound, which is what ddl waits for.",
        "Volume is what devices push, indices included; the model that they pull is not compressed. Compression: an MLP"
        " on the digits, 400 rounds of 16 devices, which is until nothing more is learned; LeNet-5 on CIFAR-10, 600"
        " rounds, is stopped long before.",
        "A push counts as compressed if it takes less than half of the dense bytes.",
    ),
)
