"""`potluck bench`: published numbers, goals and our own, side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from potluck.bench.report import Report

__all__ = ["bench_command"]

Name = Annotated[str | None, typer.Argument(help="Which one, or `all`; without a name they are listed.")]
Quick = Annotated[bool, typer.Option("--quick/--full", help="A smaller workload, or the one that the docs quote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Folder = Annotated[Path | None, typer.Option("--data", help="Look for data sets here first.")]
Out = Annotated[Path, typer.Option("--out", help="Where NAME.json and NAME.svg are written.")]
Resume = Annotated[bool, typer.Option("--resume", help="Use the pieces that an earlier, stopped one has finished.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if a goal is missed.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of everything that is drawn.")]


def bench_command(
    name: Name = None,
    quick: Quick = True,
    as_json: AsJson = False,
    data: Folder = None,
    out: Out = Path("bench/results"),
    resume: Resume = False,
    strict: Strict = False,
    seed: Seed = 0,
) -> None:
    """Measure, and show the figures beside the published ones and the goals."""
    from potluck import bench
    from potluck.bench.experiment import Context

    if name is None:
        typer.echo(_listed(as_json))
        return
    wanted = [bench.find(one) for one in (bench.names() if name == "all" else [name])]
    _check(data, out)
    context = Context(quick, seed, data)
    reports = []
    for benchmark in wanted:
        from potluck.bench.progress import progress_on
        from potluck.bench.runner import run

        reports.append(run(benchmark, context, out, progress_on(sys.stderr), resume))
        _tell(reports[-1], out, as_json)
    if as_json:
        documents = [report.document for report in reports]
        typer.echo(json.dumps(documents if name == "all" else documents[0], indent=1, ensure_ascii=False))
    if strict and any(report.missed for report in reports):
        raise typer.Exit(1)


def _listed(as_json: bool) -> str:
    from potluck import bench

    if as_json:
        return json.dumps([{"name": name, "summary": entry.summary} for name, entry in bench.CATALOGUE.items()])
    width = max(map(len, bench.CATALOGUE))
    lines = [f"{name:<{width}}  {entry.summary}" for name, entry in bench.CATALOGUE.items()]
    return "\n".join([*lines, "", "Run one with: potluck bench NAME (or all) [--quick|--full]"])


def _check(data: Path | None, out: Path) -> None:
    from potluck.errors import UserError

    if data is not None and not data.is_dir():
        raise UserError(f"--data: there is no folder {data}; give the one that holds the data sets")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is not a folder; choose another place for the results")


def _tell(report: Report, out: Path, as_json: bool) -> None:
    from potluck.bench.report import table

    written: Sequence[Path] = report.write(out)
    if not as_json:
        typer.echo(table(report))
        typer.echo(f"\nwritten: {', '.join(map(str, written))}\n")
