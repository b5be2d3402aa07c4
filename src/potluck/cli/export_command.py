"""`potluck export`: a run for other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli.command_options import AsJson

__all__ = ["export_command"]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
To = Annotated[str, typer.Option("--to", metavar="FORMAT", help="csv, jsonl or tensorboard.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write into (default: RUN/export).")]


def export_command(run: RunFolder, to: To, out: Out = None, as_json: AsJson = False) -> None:
    """Write a run as CSV tables, JSON lines or TensorBoard event files."""
    from potluck.report.journal_export import export_run as write
    from potluck.report.run_folder import open_run

    found = open_run(run)
    paths = write(found, to, out or found.path / "export")
    if as_json:
        typer.echo(json.dumps({"format": to, "files": [str(path) for path in paths]}))
        return
    for path in paths:
        typer.echo(f"written: {path}")
