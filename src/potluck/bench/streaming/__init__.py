"""`streaming`: what goes on the wire when devices learn from streams."""

from __future__ import annotations

from potluck.bench.experiment import Benchmark
from potluck.bench.streaming import compression

__all__ = ["BENCHMARK"]

BENCHMARK = Benchmark(
    name="streaming",
    summary="training on streams (ScaDLES): compression of what is sent",
    pieces=compression.pieces,
    figures=compression.figures,
    charts=compression.charts,
    notes=(
        "Volume is what devices push, indices included; the model that they pull is not compressed.",
        "A push counts as compressed if it takes less than half of the dense bytes.",
    ),
)
