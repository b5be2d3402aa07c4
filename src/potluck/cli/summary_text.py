"""What is said when a run is over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from potluck.cli.console import open_console
from potluck.cli.device_table import device_rows, device_table
from potluck.cli.number_format import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from potluck.run import Result
    from potluck.run.run_store import RunStore

__all__ = ["print_summary"]


def print_summary(result: Result, keeper: RunStore | None, *, as_json: bool, quiet: bool) -> None:
    """Print the outcome in the form that was asked for."""
    if as_json:
        typer.echo(json.dumps({**result.summary, "folder": str(result.folder)}))
        return
    typer.echo(f"{result.status}: {result.reason}")
    if not quiet:
        typer.echo(_figures_line(result))
        if "streams" in result.summary:
            typer.echo(_streams_line(result.summary["streams"]))
        _print_devices(result, keeper)
    typer.echo(_next_step(result))


def _figures_line(result: Result) -> str:
    from potluck.run.live_status import is_live_run

    figures = result.summary
    live = is_live_run(result.folder)
    parts = [
        f"{figures['rounds']} rounds in {format_seconds(figures['time_s'])}" + ("" if live else " of virtual time")
    ]
    parts.append(f"{format_seconds(figures['wall_s'])} {'in all' if live else 'here'}")
    if figures["accuracy"] is not None:
        parts.append(f"accuracy {format_percent(figures['accuracy'])}")
    elif figures["loss"] is not None:
        parts.append(f"loss {figures['loss']:.4g}")
    return ", ".join([*parts, f"{format_bytes(figures['bytes'])} sent"])


def _streams_line(counts: Mapping[str, int]) -> str:
    """Where the samples went that streamed in, and what was refused before it was one."""
    parts = [f"{counts[name]:,} {name}" for name in ("trained", "shared", "dropped", "buffered") if counts[name]]
    line = f"{counts['streamed']:,} samples streamed in: {', '.join(parts) or 'none was used'}"
    refused = [f"{counts[name]:,} {name}" for name in ("malformed", "oversized", "late") if counts.get(name)]
    line += f"; records refused: {', '.join(refused)}" if refused else ""
    return line + (f"; connection lost {counts['breaks']:,} times" if counts.get("breaks") else "")


def _print_devices(result: Result, keeper: RunStore | None) -> None:
    if keeper is None:
        return  # not one round was closed
    console = open_console()
    console.print()
    console.print(
        device_table(device_rows(keeper.job.fleet), keeper.tally, result.summary["time_s"], width=console.width)
    )
    console.print(f"\nwhat limited it: {result.summary['limit']}", markup=False, soft_wrap=True)


def _next_step(result: Result) -> str:
    if result.status == "interrupted":
        return f"go on with: potluck resume {result.folder}"
    error = result.folder / "error.txt" if result.folder else None
    if error is not None and error.exists():
        return f"the device's own words: {error}"
    return f"kept in {result.folder}"
