"""Reads the result files that `potluck bench` wrote, and says whether each may be quoted.

    quick? ──▶ dirty or unknown commit? ──▶ code changed since? ──▶ current: counted, quoted and compared

A result that is not current is shown on the results page under a heading of its own, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from benchmarks import benchmark_catalogue
from benchmarks.benchmark_figures import Figure
from benchmarks.measured_code import code_digest
from potluck.errors import UserError

__all__ = [
    "BenchmarkResult",
    "MeasuredCode",
    "NamedFigure",
    "ResultCheck",
    "named_figures",
    "outdated_reason",
    "read_results",
]


class MeasuredCode(msgspec.Struct, frozen=True):
    """The code that a result depends on, and its digest when the result was measured."""

    paths: tuple[str, ...]
    digest: str


class ResultCheck(msgspec.Struct, frozen=True):
    """What was measured again after a change of the code: `pieces` of `of` gave the recorded values."""

    commit: str | None
    clean: bool | None
    pieces: int
    of: int
    measured_again: int = 0


class BenchmarkResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result file; keys that the page does not need are ignored."""

    name: str
    summary: str
    mode: Literal["quick", "full"]
    command: str
    date: str
    figures: tuple[Figure, ...]
    commit: str | None = None
    clean: bool | None = None
    code: MeasuredCode | None = None
    load: Mapping[str, float] = {}
    checked: ResultCheck | None = None
    notes: tuple[str, ...] = ()
    machine: Mapping[str, Any] = {}
    versions: Mapping[str, str] = {}

    @property
    def short_commit(self) -> str:
        return self.commit[:9] if self.commit else "unknown"


class NamedFigure(NamedTuple):
    """A figure with its full name: an indented figure is qualified by the one that it belongs to."""

    benchmark: str
    name: str
    figure: Figure


def read_results(folder: Path) -> dict[str, BenchmarkResult]:
    """All results in a folder by name, in the order of the catalogue; others follow."""
    results = {path.stem: _read_result(path) for path in sorted(folder.glob("*.json"))}
    order = [
        *(name for name in benchmark_catalogue.benchmark_names() if name in results),
        *(name for name in results if name not in benchmark_catalogue.benchmark_names()),
    ]
    return {name: results[name] for name in order}


def _read_result(path: Path) -> BenchmarkResult:
    try:
        return msgspec.convert(json.loads(path.read_text()), BenchmarkResult)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is not a benchmark's result ({error}); remove it, run the benchmark again, or compute its figures"
            f" from the recorded pieces: potluck bench {path.stem} --redraw"
        ) from None


def outdated_reason(result: BenchmarkResult) -> str:
    """Why a result may not be quoted, counted or compared; empty if it is current."""
    if result.mode == "quick":
        return "a quick run: a smaller workload"
    if result.commit is None or result.code is None or result.clean is None:
        return "recorded before result files named their commit and the code that they measure"
    if not result.clean or (result.checked and not result.checked.clean):
        return f"measured with changes that are not in commit {result.short_commit}"
    if code_digest(result.code.paths) != result.code.digest:
        return f"the code that it measures has changed since commit {result.short_commit}"
    return ""


def named_figures(result: BenchmarkResult) -> Iterator[NamedFigure]:
    above = ""
    for figure in result.figures:
        name = figure.name.strip()
        if figure.name.startswith(" "):
            name = f"{above}: {name}"
        else:
            above = name
        yield NamedFigure(result.name, name, figure)
