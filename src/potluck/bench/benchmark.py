"""What a benchmark declares: pieces of work, the figures that come of them, and a chart.

    pieces ──run one by one, each kept when done──▶ results by name ──▶ figures, charts

A piece is measured on its own and gives plain data, so a benchmark that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from potluck import data
from potluck.bench.benchmark_figures import Figure
from potluck.bench.svg_chart import Chart
from potluck.errors import DataError

__all__ = ["Benchmark", "BenchmarkContext", "BenchmarkPiece", "Results"]

Results = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class BenchmarkContext:
    """What the user asked for."""

    quick: bool
    seed: int = 0
    data: Path | None = None


@dataclass(frozen=True)
class BenchmarkPiece:
    """One measurement; same parameters, same work. `weight` is about how many seconds it takes.

    Where nothing of the result is a time of this machine, the piece may be worked on beside others, in processes; its
    `measure` must then be one that can be sent there.
    """

    name: str
    parameters: Mapping[str, Any]
    measure: Callable[[], Mapping[str, Any]]
    expected_s: float = 1.0
    parallel: bool = False


@dataclass(frozen=True)
class Benchmark:
    """An experiment that can be run by name."""

    name: str
    summary: str
    pieces: Callable[[BenchmarkContext], Sequence[BenchmarkPiece]]
    figures: Callable[[Results], Sequence[Figure]]
    charts: Callable[[Results], Sequence[Chart]] = field(default=lambda results: ())
    notes: Sequence[str] = ()
    datasets: Callable[[BenchmarkContext], Sequence[str]] = field(
        default=lambda context: ()
    )  # data sets, looked for at the start

    def check_data(self, context: BenchmarkContext) -> None:
        """DataError says which data set is missing and how to get it, before hours are spent on the others."""
        for name in self.datasets(context):
            found = data.info(name, context.data)
            if found.place is None:
                raise DataError(
                    f"potluck bench {self.name} needs {name}, which is not here; {found.get} (or --data DIR)"
                )
