"""What is said when a run is over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from potluck.cli.console import open_console
from potluck.cli.figures import amount, percent, seconds
from potluck.cli.rows import rows, table

if TYPE_CHECKING:
    from potluck.run import Result
    from potluck.run.keeper import Keeper

__all__ = ["say"]


def say(result: Result, keeper: Keeper | None, *, as_json: bool, quiet: bool) -> None:
    """Print the outcome in the form that was asked for."""
    if as_json:
        typer.echo(json.dumps({**result.summary, "folder": str(result.folder)}))
        return
    typer.echo(f"{result.status}: {result.reason}")
    if not quiet:
        typer.echo(_figures(result))
        if "streams" in result.summary:
            typer.echo(_streams(result.summary["streams"]))
        _say_devices(result, keeper)
    typer.echo(_next(result))


def _figures(result: Result) -> str:
    from potluck.run.ticket import is_live

    figures = result.summary
    live = is_live(result.folder)
    parts = [f"{figures['rounds']} rounds in {seconds(figures['time_s'])}" + ("" if live else " of virtual time")]
    parts.append(f"{seconds(figures['wall_s'])} {'in all' if live else 'here'}")
    if figures["accuracy"] is not None:
        parts.append(f"accuracy {percent(figures['accuracy'])}")
    elif figures["loss"] is not None:
        parts.append(f"loss {figures['loss']:.4g}")
    return ", ".join([*parts, f"{amount(figures['bytes'])} sent"])


def _streams(counts: Mapping[str, int]) -> str:
    """Where the samples went that streamed in, and what was refused before it was one."""
    parts = [f"{counts[name]:,} {name}" for name in ("trained", "shared", "dropped", "buffered") if counts[name]]
    line = f"{counts['streamed']:,} samples streamed in: {', '.join(parts) or 'none was used'}"
    refused = [f"{counts[name]:,} {name}" for name in ("malformed", "oversized", "late") if counts.get(name)]
    line += f"; records refused: {', '.join(refused)}" if refused else ""
    return line + (f"; connection lost {counts['breaks']:,} times" if counts.get("breaks") else "")


def _say_devices(result: Result, keeper: Keeper | None) -> None:
    if keeper is None:
        return  # not one round was closed
    console = open_console()
    console.print()
    console.print(table(rows(keeper.job.fleet), keeper.tally, result.summary["time_s"], width=console.width))
    console.print(f"\nwhat limited it: {result.summary['limit']}", markup=False, soft_wrap=True)


def _next(result: Result) -> str:
    if result.status == "interrupted":
        return f"go on with: potluck resume {result.folder}"
    error = result.folder / "error.txt" if result.folder else None
    if error is not None and error.exists():
        return f"the device's own words: {error}"
    return f"kept in {result.folder}"
