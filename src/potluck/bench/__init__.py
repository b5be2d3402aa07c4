"""Declared experiments: published numbers, goals and our own measurements, side by side.

A benchmark is a file (or a folder) that says `BENCHMARK = Benchmark(...)`, and one line here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from potluck.errors import UserError

if TYPE_CHECKING:
    from potluck.bench.benchmark import Benchmark

__all__ = ["CATALOGUE", "BenchmarkEntry", "benchmark_names", "find_benchmark"]


class BenchmarkEntry(NamedTuple):
    """Where a benchmark is, and what it shows; known without loading it."""

    module: str
    summary: str


CATALOGUE: Mapping[str, BenchmarkEntry] = {
    "simulation": BenchmarkEntry("potluck.bench.simulation", "how fast and how large the simulated world is"),
    "overlap": BenchmarkEntry("potluck.bench.overlap", "how much of the transfers hides behind computation (DynaComm)"),
    "pipeline": BenchmarkEntry(
        "potluck.bench.pipeline",
        "uneven, changing and dying devices in a pipeline (FTPipeHD), simulated; deaths live as well",
    ),
    "dropout": BenchmarkEntry(
        "potluck.bench.dropout",
        "how much of the network a device can afford this instant (DISTREAL), and what that is worth",
    ),
    "decoupled": BenchmarkEntry(
        "potluck.bench.decoupled",
        "devices that train the groups of their own classes (Chen and Qin 2020): MACs saved, accuracy harvested",
    ),
    "transport": BenchmarkEntry(
        "potluck.bench.transport", "how fast a model travels between two processes, against plain Zenoh"
    ),
    "live": BenchmarkEntry(
        "potluck.bench.live", "what a live round costs, and whether the simulated world predicts it"
    ),
    "streaming": BenchmarkEntry(
        "potluck.bench.streaming", "training on streams (ScaDLES): time to target, buffers, skewed classes, compression"
    ),
}


def benchmark_names() -> tuple[str, ...]:
    """All benchmarks, in the order in which `all` runs them."""
    return tuple(CATALOGUE)


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of this name."""
    if name not in CATALOGUE:
        raise UserError(f"there is no benchmark {name!r}; choose from {', '.join(CATALOGUE)} or all")
    benchmark: Benchmark = importlib.import_module(CATALOGUE[name].module).BENCHMARK
    return benchmark
