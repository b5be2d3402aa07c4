"""`potluck explore`: search for the filters to drop at each budget, and write a table that a job can name."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.command_options import AsJson, Data, JobFile, Quiet, Sets, job_file_path
from potluck.cli.console import open_console, plain_table
from potluck.cli.number_format import format_percent, format_seconds
from potluck.errors import SettingError

if TYPE_CHECKING:
    from potluck.explore import Exploration, ExplorationProgress, ExplorationResult
    from potluck.job import Job

__all__ = ["explore_command"]

Out = Annotated[Path, typer.Option("--out", help="The file for the table; evaluations are cached beside it.")]
Minutes = Annotated[float | None, typer.Option("--minutes", min=0.01, help="Stop searching after this many minutes.")]
Proxy = Annotated[
    str, typer.Option("--proxy", help="How to judge candidates while searching: none (train them), alignment or brief.")
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="A run's folder or a file of weights to search from, without warm-up; by default the job's `start`.",
    ),
]
With = Annotated[
    list[str] | None,
    typer.Option(
        "--with", metavar="KEY=VALUE", help="Override a setting of the search, as in population=64; repeatable."
    ),
]


def explore_command(
    job: JobFile,
    settings: Sets = None,
    out: Out = Path("table.json"),
    minutes: Minutes = None,
    proxy: Proxy = "none",
    weights: From = None,
    options: With = None,
    data: Data = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Search for the best filters to drop at each compute budget."""
    from potluck.cli.run_command import add_cwd_to_path
    from potluck.explore import explore as search
    from potluck.explore import slowest_profile
    from potluck.job import load_job

    add_cwd_to_path()
    wanted = load_job(job_file_path(job), settings or [])
    start = weights or (None if wanted.start is None else Path(wanted.start))
    first: dict[str, object] = {} if start is None else {"warmup": 0}
    if minutes is not None:
        first["minutes"] = minutes
    chosen = _exploration_settings(wanted, {"proxy": proxy, **first}, options or [])
    shown = None if quiet or as_json else _ExploreProgress(chosen)
    cache = out.with_name(out.name + ".evaluations.jsonl")
    result = search(
        wanted.task,
        chosen,
        root=data,
        cache=cache,
        profile=slowest_profile(wanted),
        start=start,
        progress=shown or (lambda _: None),
    )
    if shown is not None:
        shown.end_line()
    result.table.save(out)
    picture = out.with_suffix(".svg")
    picture.write_text(_draw_front(result), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(_front_to_json(result, out)))
    else:
        _print_front(result, out, quiet)
        typer.echo(_usage_hint(out, job_file_path(job).parent))


def _draw_front(result: ExplorationResult) -> str:
    """Draw the Pareto front beside the one with a single rate for all layers."""
    from potluck.report.svg_chart import Chart, ChartSeries, draw_charts

    tables = {"explored": result.table, "one rate for all layers": result.uniform}
    series = [
        ChartSeries(
            name,
            [entry.gain for entry in table.entries],
            [100 * fraction for fraction in table.cost_fractions],
        )
        for name, table in tables.items()
    ]
    chart = Chart(title=result.table.model, y_label="gain", x_label="cost, % of the whole model's", series=series)
    return draw_charts([chart])


def _exploration_settings(job: Job, flags: Mapping[str, object], options: list[str]) -> Exploration:
    """The settings of the search: those of the job, overridden by flags and then by the options."""
    from potluck.explore import Exploration, settings_from_job
    from potluck.settings import apply_override, decode_settings

    raw: dict[str, object] = {**settings_from_job(job), **flags}
    for option in options:
        if "=" not in option:
            raise SettingError("--with", f"{option!r} does not have the form key=value")
        raw = apply_override(raw, option)
    return decode_settings(raw, Exploration, "explore")


class _ExploreProgress:
    """Shows the progress and the remaining time in one line, which is overwritten on a terminal."""

    def __init__(self, settings: Exploration) -> None:
        self._settings = settings
        self._started_at = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def __call__(self, progress: ExplorationProgress) -> None:
        text = f"generation {progress.generation + 1}, {progress.done} evaluations, {self._remaining_text(progress)}"
        if self._terminal:
            typer.echo(f"\r\033[K{text}", err=True, nl=False)
        elif progress.done % 20 == 0:
            typer.echo(text, err=True)

    def end_line(self) -> None:
        if self._terminal:
            typer.echo("", err=True)

    def _remaining_text(self, progress: ExplorationProgress) -> str:
        elapsed, settings = time.monotonic() - self._started_at, self._settings
        total = settings.population * settings.generations
        left = elapsed * max(0, total - progress.done) / progress.done
        if settings.minutes is not None:
            left = min(left, max(0.0, 60 * settings.minutes - elapsed))
        return f"about {format_seconds(left)} left before the best candidates are retrained"


def _front_to_json(result: ExplorationResult, out: Path) -> dict[str, object]:
    return {
        "table": str(out),
        "entries": len(result.table.entries),
        "hypervolume": result.hypervolume,
        "uniform_hypervolume": result.uniform_hypervolume,
        "evaluations": result.evaluations,
        "proxy_rank_correlation": result.correlation,
    }


def _print_front(result: ExplorationResult, out: Path, quiet: bool) -> None:
    if not quiet:
        cost = "of the MACs" if result.table.cost == "macs" else "of the time"
        table = plain_table("entry", cost, "gain", "lowest rate", "highest rate")
        for index, (entry, fraction) in enumerate(zip(result.table.entries, result.table.cost_fractions, strict=True)):
            rates = (f"{min(entry.rates):.2f}", f"{max(entry.rates):.2f}")
            table.add_row(str(index), format_percent(fraction), f"{entry.gain:.4f}", *rates)
        open_console().print(table)
    more = result.hypervolume / result.uniform_hypervolume - 1 if result.uniform_hypervolume else 0.0
    typer.echo(
        f"{len(result.table.entries)} entries of {result.evaluations} evaluations,"
        f" hypervolume {result.hypervolume:.4f}: "
        f"{format_percent(more)} more than with one rate for all layers ({result.uniform_hypervolume:.4f})"
    )
    if result.correlation is not None:
        typer.echo(f"rank correlation of the proxy with training: {result.correlation:.2f}")
    typer.echo(f"written: {out.with_suffix('.svg')}")


def _usage_hint(out: Path, job_folder: Path) -> str:
    """How to name the table on the command line, and in the job."""
    relative = os.path.relpath(out, job_folder)
    return (
        f"written: {out}; use it with --set rounds.submodel.kind=filter-dropout"
        f" --set rounds.submodel.table={shlex.quote(str(out))}"
        f' or in job.toml as submodel = {{kind = "filter-dropout", table = "{relative}"}}'
    )
