"""`potluck bench`: measured figures beside the published ones and the goals."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.command_options import AsJson, Data

if TYPE_CHECKING:
    from potluck.bench.benchmark import BenchmarkContext
    from potluck.bench.benchmark_report import BenchmarkReport
    from potluck.errors import DataError

__all__ = ["bench_command"]

Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help="A benchmark, or `all`; without a name they are listed.")
]
Quick = Annotated[
    bool, typer.Option("--quick/--full", help="A smaller workload, or the one that the documentation quotes.")
]
Out = Annotated[Path, typer.Option("--out", help="The folder for NAME.json and NAME.svg.")]
Resume = Annotated[bool, typer.Option("--resume", help="Reuse the results of an earlier, interrupted benchmark.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if a goal is missed.")]
Page = Annotated[Path | None, typer.Option("--results", help="Write a page with all results in --out to this file.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the benchmark.")]


def bench_command(
    name: Name = None,
    quick: Quick = True,
    as_json: AsJson = False,
    data: Data = None,
    out: Out = Path("bench/results"),
    resume: Resume = False,
    strict: Strict = False,
    seed: Seed = 0,
    page: Page = None,
) -> None:
    """Run benchmarks and compare them with published figures and goals."""
    from potluck.bench.benchmark import BenchmarkContext

    _check_arguments(data, out)
    if name is None and page is None:
        typer.echo(_list_benchmarks(as_json))
    reports, refused = (
        _run_benchmarks(name, BenchmarkContext(quick, seed, data), out, resume, as_json) if name else ([], [])
    )
    if page is not None:
        _write_results_page(out, page)
    if as_json and reports:
        documents = [report.document for report in reports]
        typer.echo(json.dumps(documents if name == "all" else documents[0], indent=1, ensure_ascii=False))
    if refused or (strict and any(report.missed_figures for report in reports)):
        raise typer.Exit(2 if refused else 1)


def _run_benchmarks(
    name: str, context: BenchmarkContext, out: Path, resume: bool, as_json: bool
) -> tuple[list[BenchmarkReport], list[DataError]]:
    """Run them one after the other; with `all`, those whose data is missing are reported and skipped."""
    from potluck import bench
    from potluck.bench.benchmark_progress import choose_progress
    from potluck.bench.benchmark_runner import run_benchmark
    from potluck.errors import DataError

    reports: list[BenchmarkReport] = []
    refused: list[DataError] = []
    chosen = bench.benchmark_names() if name == "all" else [name]
    for benchmark in [bench.find_benchmark(each) for each in chosen]:
        try:
            reports.append(run_benchmark(benchmark, context, out, choose_progress(sys.stderr), resume))
        except DataError as error:
            if name != "all":
                raise
            refused.append(error)
            typer.echo(f"{benchmark.name} is skipped: {error}\n", err=True)
        else:
            _print_report(reports[-1], out, as_json)
    return reports, refused


def _write_results_page(results: Path, page: Path) -> None:
    from potluck.bench.piece_cache import write_atomically
    from potluck.bench.results_page import render_results_page

    write_atomically(page, render_results_page(results, page))
    typer.echo(f"written: {page}", err=True)


def _list_benchmarks(as_json: bool) -> str:
    from potluck import bench

    if as_json:
        return json.dumps([{"name": name, "summary": entry.summary} for name, entry in bench.CATALOGUE.items()])
    width = max(map(len, bench.CATALOGUE))
    lines = [f"{name:<{width}}  {entry.summary}" for name, entry in bench.CATALOGUE.items()]
    return "\n".join([*lines, "", "Run one with: potluck bench NAME (or all) [--quick|--full]"])


def _check_arguments(data: Path | None, out: Path) -> None:
    from potluck.errors import UserError

    if data is not None and not data.is_dir():
        raise UserError(f"--data: there is no folder {data}; name the one that contains the datasets")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is not a folder; choose another one for the results")


def _print_report(report: BenchmarkReport, out: Path, as_json: bool) -> None:
    from potluck.bench.benchmark_report import figures_table

    written: Sequence[Path] = report.write_files(out)
    if not as_json:
        typer.echo(figures_table(report))
        typer.echo(f"\nwritten: {', '.join(map(str, written))}\n")
