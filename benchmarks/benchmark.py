"""What a benchmark declares: pieces of work, and the figures and charts computed from their results.

    pieces ──measured one by one, each stored when done──▶ results by name ──▶ figures, charts

A piece is measured independently of the others and returns plain data, so a stopped benchmark can resume.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.benchmark_figures import Figure
from benchmarks.measured_code import code_of_benchmark
from potluck import data
from potluck.errors import DataError
from potluck.report.svg_chart import Chart

__all__ = ["Benchmark", "BenchmarkContext", "BenchmarkPiece", "Results"]

Results = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class BenchmarkContext:
    """The options of `potluck bench` that affect what is measured."""

    quick: bool
    seed: int = 0
    data: Path | None = None

    @property
    def mode(self) -> str:
        return "quick" if self.quick else "full"


@dataclass(frozen=True)
class BenchmarkPiece:
    """One measurement; equal parameters mean equal work.

    A piece is `parallel` if its result contains no time of this machine: it is run beside others in a worker process,
    so that its `measure` must be picklable, and a check compares it to the last digit. `code` is a digest of the code
    that it measures, if that is less than what the benchmark measures.
    """

    name: str
    parameters: Mapping[str, Any]
    measure: Callable[..., Mapping[str, Any]]
    expected_s: float = 1.0
    parallel: bool = False
    needs: tuple[str, ...] = ()  # pieces without needs, whose results by name are the argument of `measure`
    code: str = ""


@dataclass(frozen=True)
class Benchmark:
    """An experiment that can be run by name.

    `measures` are the paths of the code that its figures depend on (`measured_code.py`); by default all of the package.
    The folder of `pieces` is always one of them.
    """

    name: str
    summary: str
    pieces: Callable[[BenchmarkContext], Sequence[BenchmarkPiece]]
    figures: Callable[[Results], Sequence[Figure]]
    charts: Callable[[Results], Sequence[Chart]] = field(default=lambda results: ())
    notes: Sequence[str] = ()
    datasets: Callable[[BenchmarkContext], Sequence[str]] = field(default=lambda context: ())
    resumes: bool = False  # finished pieces are reused unless asked otherwise
    measures: Sequence[str] = ()
    command: str = ""  # by default `potluck bench NAME --seed N`

    @property
    def code_paths(self) -> tuple[str, ...]:
        """The paths of the code that it measures."""
        return code_of_benchmark(self.pieces.__module__, self.measures)

    def command_line(self, context: BenchmarkContext) -> str:
        """What measures the same again."""
        if self.command:
            return f"{self.command} --{context.mode}"
        return f"potluck bench {self.name} --{context.mode} --seed {context.seed}"

    def check_data(self, context: BenchmarkContext) -> None:
        """Raise DataError if a dataset is missing, before hours are spent on the pieces that do not need it."""
        for name in self.datasets(context):
            info = data.info(name, context.data)
            if info.location is None:
                raise DataError(
                    f"potluck bench {self.name} needs the dataset {name}, which is missing; {info.get} (or --data DIR)"
                )
