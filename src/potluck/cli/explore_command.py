"""`potluck explore`: find out which filters to drop at which budget, and write the table that a job can name."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.command_options import AsJson, Data, JobFile, Quiet, Sets, job_file_path
from potluck.cli.console import open_console, plain_table
from potluck.cli.number_format import format_percent, format_seconds

if TYPE_CHECKING:
    from potluck.explore import Exploration, ExplorationProgress, ExplorationResult
    from potluck.job import Job

__all__ = ["explore_command"]

Out = Annotated[Path, typer.Option("--out", help="Where to write the table; evaluations are kept beside it.")]
Minutes = Annotated[float | None, typer.Option("--minutes", min=0.01, help="Stop searching after so long.")]
Proxy = Annotated[str, typer.Option("--proxy", help="Judge by none (train), alignment or brief while searching.")]
With = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="KEY=VALUE", help="Change how it explores, as in population=64; may be repeated."),
]


def explore_command(
    job: JobFile,
    settings: Sets = None,
    out: Out = Path("table.json"),
    minutes: Minutes = None,
    proxy: Proxy = "none",
    ways: With = None,
    data: Data = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Search for the best filters to drop at every budget."""
    from potluck.cli.run_command import add_cwd_to_path
    from potluck.explore import explore as search
    from potluck.explore import slowest_profile
    from potluck.job import load_job

    add_cwd_to_path()
    wanted = load_job(job_file_path(job), settings or [])
    chosen = _exploration_settings(wanted, minutes, proxy, ways or [])
    shown = None if quiet or as_json else _ExploreProgress(chosen)
    cache = out.with_name(out.name + ".evaluations.jsonl")
    found = search(
        wanted.task,
        chosen,
        root=data,
        cache=cache,
        profile=slowest_profile(wanted),
        progress=shown or (lambda _: None),
    )
    if shown is not None:
        shown.end_line()
    found.table.save(out)
    picture = out.with_suffix(".svg")
    picture.write_text(_draw_front(found), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(_front_to_json(found, out)))
    else:
        _print_front(found, out, quiet)
        typer.echo(_usage_hint(out, job_file_path(job).parent))


def _draw_front(found: ExplorationResult) -> str:
    """The front beside one rate for all sets."""
    from potluck.report.svg_chart import Chart, ChartSeries, draw_charts

    tables = {"explored": found.table, "one rate for all sets": found.uniform}
    series = [
        ChartSeries(
            name,
            [entry.gain for entry in table.entries],
            [100 * share for share in table.cost_fractions],
        )
        for name, table in tables.items()
    ]
    chart = Chart(title=found.table.model, y_label="gain", x_label="cost, % of the whole model's", series=series)
    return draw_charts([chart])


def _exploration_settings(job: Job, minutes: float | None, proxy: str, ways: list[str]) -> Exploration:
    """As the job trains, unless it is said otherwise."""
    from potluck.explore import Exploration, settings_from_job
    from potluck.settings import apply_override, decode_settings

    raw: dict[str, object] = {**settings_from_job(job), "proxy": proxy}
    if minutes is not None:
        raw["minutes"] = minutes
    for way in ways:
        raw = apply_override(raw, way)
    return decode_settings(raw, Exploration, "explore")


class _ExploreProgress:
    """One line that is written over: how far it is, and how long it may still take."""

    def __init__(self, settings: Exploration) -> None:
        self._settings = settings
        self._began = time.monotonic()
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
        elapsed, settings = time.monotonic() - self._began, self._settings
        total = settings.population * settings.generations
        left = elapsed * max(0, total - progress.done) / progress.done
        if settings.minutes is not None:
            left = min(left, max(0.0, 60 * settings.minutes - elapsed))
        return f"about {format_seconds(left)} left before the best are trained again"


def _front_to_json(found: ExplorationResult, out: Path) -> dict[str, object]:
    return {
        "table": str(out),
        "entries": len(found.table.entries),
        "hypervolume": found.hypervolume,
        "uniform_hypervolume": found.uniform_hypervolume,
        "evaluations": found.evaluations,
        "proxy_rank_correlation": found.correlation,
    }


def _print_front(found: ExplorationResult, out: Path, quiet: bool) -> None:
    if not quiet:
        cost = "of the MACs" if found.table.cost == "macs" else "of the time"
        table = plain_table("entry", cost, "gain", "lowest rate", "highest rate")
        for place, (entry, share) in enumerate(zip(found.table.entries, found.table.cost_fractions, strict=True)):
            rates = (f"{min(entry.rates):.2f}", f"{max(entry.rates):.2f}")
            table.add_row(str(place), format_percent(share), f"{entry.gain:.4f}", *rates)
        open_console().print(table)
    more = found.hypervolume / found.uniform_hypervolume - 1 if found.uniform_hypervolume else 0.0
    typer.echo(
        f"{len(found.table.entries)} entries of {found.evaluations} evaluations, hypervolume {found.hypervolume:.4f}: "
        f"{format_percent(more)} more than with one rate for all sets ({found.uniform_hypervolume:.4f})"
    )
    if found.correlation is not None:
        typer.echo(f"rank correlation of the proxy with training: {found.correlation:.2f}")
    typer.echo(f"the front is drawn in {out.with_suffix('.svg')}")


def _usage_hint(out: Path, beside: Path) -> str:
    """From where the user stands, and from the job's own folder."""
    there = os.path.relpath(out, beside)
    return (
        f"written to {out}; use it with --set rounds.submodel.kind=filter-dropout"
        f" --set rounds.submodel.table={shlex.quote(str(out))}"
        f' or in job.toml as submodel = {{kind = "filter-dropout", table = "{there}"}}'
    )
