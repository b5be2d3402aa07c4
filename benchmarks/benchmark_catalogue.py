"""The list of benchmarks. A new one needs a module with `BENCHMARK = Benchmark(...)` and one entry in this file."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from potluck.errors import UserError

if TYPE_CHECKING:
    from benchmarks.benchmark import Benchmark

__all__ = ["CATALOGUE", "BenchmarkEntry", "benchmark_names", "find_benchmark"]


class BenchmarkEntry(NamedTuple):
    """The module of a benchmark and what it shows; available without importing the module."""

    module: str
    summary: str


CATALOGUE: Mapping[str, BenchmarkEntry] = {
    "simulation": BenchmarkEntry("benchmarks.simulation", "speed and scale of the simulated world"),
    "overlap": BenchmarkEntry("benchmarks.overlap", "overlapping transfers with computation (DynaComm)"),
    "pipeline": BenchmarkEntry(
        "benchmarks.pipeline",
        "a pipeline over devices that are uneven, change speed and crash (FTPipeHD), simulated; crashes also live",
    ),
    "dropout": BenchmarkEntry(
        "benchmarks.dropout", "training as much of the network as a device can afford at any moment (DISTREAL)"
    ),
    "decoupled": BenchmarkEntry(
        "benchmarks.decoupled",
        "devices that train only the groups of their own classes (Chen and Qin 2020): MACs saved and accuracy",
    ),
    "transport": BenchmarkEntry(
        "benchmarks.transport", "speed of moving a model between two processes, compared with plain Zenoh"
    ),
    "live": BenchmarkEntry(
        "benchmarks.live",
        "live rounds: overhead, links shaped by the kernel, kills, cut links, lost packets; accuracy of predictions",
    ),
    "streaming": BenchmarkEntry(
        "benchmarks.streaming",
        "training on streams (ScaDLES): time to target, buffer sizes, skewed classes, compression",
    ),
    "tasks": BenchmarkEntry(
        "benchmarks.tasks",
        "a GPT, a text classifier, segmentation and LoRA: metric, bytes and step time beside a plain PyTorch loop",
    ),
    "faults": BenchmarkEntry(
        "benchmarks.faults", "runs under kills, freezes, cut links, full disks, lying devices and mutated messages"
    ),
}


def benchmark_names() -> tuple[str, ...]:
    """All benchmarks, in the order in which `all` runs them."""
    return tuple(CATALOGUE)


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of this name."""
    if name not in CATALOGUE:
        raise UserError(f"unknown benchmark {name!r}; choose from {', '.join(CATALOGUE)} or all")
    benchmark: Benchmark = importlib.import_module(CATALOGUE[name].module).BENCHMARK
    return benchmark
