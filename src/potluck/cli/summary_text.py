"""Prints the summary of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from potluck.cli.console import open_console
from potluck.cli.device_table import device_rows, device_table
from potluck.cli.number_format import format_bytes, format_seconds, score_texts

if TYPE_CHECKING:
    from potluck.run import Result
    from potluck.run.run_store import RunStore

__all__ = ["print_summary"]


def print_summary(result: Result, store: RunStore | None, elapsed_s: float, *, as_json: bool, quiet: bool) -> None:
    """Print the outcome as JSON, as text, or in short; `elapsed_s` is the wall-clock time that the progress showed."""
    if as_json:
        typer.echo(json.dumps({**result.summary, "folder": str(result.folder)}))
        return
    typer.echo(f"{result.status}: {result.reason}")
    if not quiet:
        typer.echo(_figures_line(result, elapsed_s))
        if "streams" in result.summary:
            typer.echo(_streams_line(result.summary["streams"]))
        _print_devices(result, store)
    typer.echo(_next_step(result))


def _figures_line(result: Result, elapsed_s: float) -> str:
    from potluck.run.live_status import is_live_run

    figures = result.summary
    simulated = "" if is_live_run(result.folder) else " of simulated time"
    texts = [
        f"{figures['rounds']} rounds in {format_seconds(figures['time_s'])}{simulated}"
        f" ({format_seconds(elapsed_s)} wall-clock)"
    ]
    texts += score_texts(figures.get("metrics") or {"accuracy": figures["accuracy"], "loss": figures["loss"]})
    if "best" in figures:
        best = figures["best"]
        texts.append(f"best {score_texts({best['metric']: best['value']})[0]} after {best['round']} rounds")
    return ", ".join([*texts, f"{format_bytes(figures['bytes'])} sent"])


def _streams_line(counts: Mapping[str, int]) -> str:
    """What became of the samples that streamed in, and how many records were refused."""
    used = [f"{counts[name]:,} {name}" for name in ("trained", "shared", "dropped", "buffered") if counts[name]]
    line = f"{counts['streamed']:,} samples streamed in: {', '.join(used) or 'none was used'}"
    refused = [f"{counts[name]:,} {name}" for name in ("malformed", "oversized", "late") if counts.get(name)]
    line += f"; records refused: {', '.join(refused)}" if refused else ""
    return line + (f"; connection lost {counts['breaks']:,} times" if counts.get("breaks") else "")


def _print_devices(result: Result, store: RunStore | None) -> None:
    if store is None:
        return  # no round was completed
    console = open_console()
    console.print()
    console.print(
        device_table(device_rows(store.job.fleet), store.tally, result.summary["time_s"], width=console.width)
    )
    console.print(f"\nwhat limited it: {result.summary['limit']}", markup=False, soft_wrap=True)


def _next_step(result: Result) -> str:
    if result.status == "interrupted":
        return f"continue with: potluck resume {result.folder}"
    error = result.folder / "error.txt" if result.folder else None
    if error is not None and error.exists():
        return f"the device's traceback is in {error}"
    return f"kept in {result.folder}"
