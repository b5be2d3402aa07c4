"""`potluck bench`: measures, and prints the figures beside the published values and the goals.

The benchmarks belong to the repository, not to the installed package, so the command works in a checkout only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potluck.cli.command_options import AsJson, Data

if TYPE_CHECKING:
    from benchmarks.benchmark import Benchmark, BenchmarkContext
    from benchmarks.benchmark_report import BenchmarkReport
    from potluck.errors import DataError

__all__ = ["bench_command"]

Name = Annotated[str | None, typer.Argument(help="Name of a benchmark, or `all`; without a name they are listed.")]
Quick = Annotated[bool, typer.Option("--quick/--full", help="A smaller workload, or the one that the docs quote.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder for NAME.json and NAME.svg.", show_default="benchmarks/results of the checkout"),
]
Resume = Annotated[
    bool | None,
    typer.Option(
        "--resume/--fresh",
        help="Reuse the pieces that an interrupted run has finished, or measure all.",
        show_default="--fresh; faults: --resume",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if a goal is missed.")]
Page = Annotated[Path | None, typer.Option("--results", help="Write a page with all results in --out to this file.")]
Redraw = Annotated[
    bool, typer.Option("--redraw", help="Compute figures and charts from the recorded results; measure nothing.")
]
Check = Annotated[
    float | None,
    typer.Option(
        "--check",
        metavar="MINUTES",
        min=0,
        help="Measure some pieces of a recorded result again, for about so long, and compare to the last digit.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all random numbers.")]


def bench_command(
    name: Name = None,
    quick: Quick = True,
    as_json: AsJson = False,
    data: Data = None,
    out: Out = None,
    resume: Resume = None,
    strict: Strict = False,
    seed: Seed = 0,
    page: Page = None,
    redraw: Redraw = False,
    check: Check = None,
) -> None:
    """Run benchmarks; compare with published figures and goals."""
    checkout = _import_from_checkout()
    from benchmarks.benchmark import BenchmarkContext

    out = checkout / "benchmarks" / "results" if out is None else out
    _check_arguments(data, out)
    if name is None and page is None:
        typer.echo(_list_benchmarks(as_json))
    reports: list[BenchmarkReport] = []
    refused: list[DataError] = []
    if name and redraw:
        reports = _redraw_reports(name, out, as_json)
    elif name and check is not None:
        reports = _check_reports(name, data, out, check, as_json)
    elif name:
        reports, refused = _run_benchmarks(name, BenchmarkContext(quick, seed, data), out, resume, as_json)
    if page is not None:
        _write_results_page(out, page)
    if as_json and reports:
        documents = [report.document for report in reports]
        typer.echo(json.dumps(documents if name == "all" else documents[0], indent=1, ensure_ascii=False))
    if refused or (strict and any(report.missed_figures for report in reports)):
        raise typer.Exit(2 if refused else 1)


def _import_from_checkout() -> Path:
    """Make `benchmarks` importable; the checkout is where this package lies, or around the current folder."""
    from potluck.errors import UserError

    for folder in (Path(__file__).resolve().parents[3], Path.cwd(), *Path.cwd().parents):
        if (folder / "benchmarks" / "benchmark_catalogue.py").is_file():
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
            return folder
    raise UserError(
        "benchmarks are not part of the installed package; clone the repository and run `potluck bench` there"
    )


def _check_arguments(data: Path | None, out: Path) -> None:
    from potluck.errors import UserError

    if data is not None and not data.is_dir():
        raise UserError(f"--data: there is no folder {data}; name the folder that holds the datasets")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is not a folder; choose another one for the results")


def _list_benchmarks(as_json: bool) -> str:
    from benchmarks.benchmark_catalogue import CATALOGUE

    if as_json:
        return json.dumps([{"name": name, "summary": entry.summary} for name, entry in CATALOGUE.items()])
    width = max(map(len, CATALOGUE))
    lines = [f"{name:<{width}}  {entry.summary}" for name, entry in CATALOGUE.items()]
    return "\n".join([*lines, "", "Run one with: potluck bench NAME (or all) [--quick|--full]"])


def _run_benchmarks(
    name: str, context: BenchmarkContext, out: Path, resume: bool | None, as_json: bool
) -> tuple[list[BenchmarkReport], list[DataError]]:
    """Run one benchmark, or all of them except those whose datasets are missing."""
    from benchmarks.benchmark_catalogue import benchmark_names, find_benchmark
    from benchmarks.benchmark_progress import choose_progress
    from benchmarks.benchmark_runner import run_benchmark
    from potluck.errors import DataError

    reports: list[BenchmarkReport] = []
    refused: list[DataError] = []
    for benchmark in [find_benchmark(each) for each in (benchmark_names() if name == "all" else [name])]:
        try:
            reports.append(run_benchmark(benchmark, context, out, choose_progress(sys.stderr), resume))
        except DataError as error:
            if name != "all":
                raise
            refused.append(error)
            typer.echo(f"skipped {benchmark.name}: {error}\n", err=True)
        else:
            _print_report(reports[-1], out, as_json)
    return reports, refused


def _redraw_reports(name: str, out: Path, as_json: bool) -> list[BenchmarkReport]:
    """Build the reports again from the recorded pieces; commit, code and load stay as they were."""
    from benchmarks.benchmark_report import redraw_report

    reports = []
    for benchmark, document in _recorded_results(name, out):
        reports.append(redraw_report(benchmark, document))
        _print_report(reports[-1], out, as_json)
    return reports


def _check_reports(name: str, data: Path | None, out: Path, minutes: float, as_json: bool) -> list[BenchmarkReport]:
    """Measure some pieces of the recorded results again; full results only."""
    from benchmarks.benchmark import BenchmarkContext
    from benchmarks.result_check import check_result
    from potluck.errors import UserError

    reports: list[BenchmarkReport] = []
    if _check_unfinished(name, data, out, minutes):
        return reports
    for benchmark, document in _recorded_results(name, out):
        context = BenchmarkContext(document["mode"] == "quick", document["seed"], data)
        if context.quick:
            raise UserError(f"{benchmark.name}: a quick run is not checked; measure it: potluck bench {benchmark.name}")
        reports.append(check_result(benchmark, context, document, minutes, lambda line: typer.echo(line, err=True)))
        _print_report(reports[-1], out, as_json)
    return reports


def _check_unfinished(name: str, data: Path | None, out: Path, minutes: float) -> bool:
    """Check the pieces of a full run that was interrupted, if there are any; whether there were."""
    from benchmarks.benchmark import BenchmarkContext
    from benchmarks.benchmark_catalogue import find_benchmark
    from benchmarks.piece_store import unfinished_path
    from benchmarks.result_check import check_unfinished

    if name == "all" or not unfinished_path(out, name, "full").is_file():
        return False
    context = BenchmarkContext(quick=False, data=data)
    count = check_unfinished(find_benchmark(name), context, out, minutes, lambda line: typer.echo(line, err=True))
    typer.echo(f"{name} is unfinished: {count} pieces stand; go on with `potluck bench {name} --full --resume`")
    return True


def _recorded_results(name: str, out: Path) -> Iterator[tuple[Benchmark, dict[str, Any]]]:
    """A benchmark with its recorded result, or all that have one."""
    from benchmarks.benchmark_catalogue import benchmark_names, find_benchmark
    from potluck.errors import UserError

    for each in benchmark_names() if name == "all" else [name]:
        benchmark, path = find_benchmark(each), out / f"{each}.json"
        if path.is_file():
            yield benchmark, json.loads(path.read_text())
        elif name != "all":
            raise UserError(f"there is no recorded result {path}; run `potluck bench {each}` first")


def _print_report(report: BenchmarkReport, out: Path, as_json: bool) -> None:
    from benchmarks.benchmark_report import figures_table

    written = report.write_files(out)
    if not as_json:
        typer.echo(figures_table(report))
        typer.echo(f"\nwritten: {', '.join(map(str, written))}\n")


def _write_results_page(results: Path, page: Path) -> None:
    from benchmarks.results_page import render_results_page
    from potluck.atomic_file import write_atomically

    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, render_results_page(results, page).encode())
    typer.echo(f"written: {page}", err=True)
