"""`potluck report` and `potluck export`: a run as an HTML page, or as files for other tools."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from potluck.atomic_file import write_atomically
from potluck.cli.command_options import AsJson
from potluck.errors import RunError

__all__ = ["export_command", "report_command"]

Folders = Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs; several are compared.")]
Page = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="The file to write (default: report.html in the run's folder, or comparison.html for several runs).",
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the web browser.")]
Png = Annotated[
    Path | None, typer.Option("--png", metavar="DIR", help="Also save each figure as PNG (needs Chromium or Chrome).")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Format = Annotated[str, typer.Option("--to", metavar="FORMAT", help="csv, jsonl or tensorboard.")]
Folder = Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write to (default: RUN/export).")]


def report_command(
    runs: Folders, out: Page = None, show: Open = False, png: Png = None, as_json: AsJson = False
) -> None:
    """Write an HTML page about a run, or one that compares several."""
    from potluck.report import render_report

    started = time.perf_counter()
    path = _write_page(render_report(runs), out or _default_page(runs))
    images = _save_images(path, png)
    if as_json:
        figures = {"report": str(path), "bytes": path.stat().st_size, "pictures": [str(image) for image in images]}
        typer.echo(json.dumps({**figures, "seconds": round(time.perf_counter() - started, 3)}))
    else:
        _print_written([path, *images])
    if show:
        typer.launch(path.resolve().as_uri())


def export_command(run: RunFolder, to: Format, out: Folder = None, as_json: AsJson = False) -> None:
    """Write a run as CSV tables, JSON lines or TensorBoard event files."""
    from potluck.report.journal_export import export_run
    from potluck.report.run_folder import open_run

    opened = open_run(run)
    folder = out or opened.path / "export"
    try:
        paths = export_run(opened, to, folder)
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from None
    if as_json:
        typer.echo(json.dumps({"format": to, "files": [str(path) for path in paths]}))
    else:
        _print_written(paths)


def _print_written(paths: list[Path]) -> None:
    for path in paths:
        typer.echo(f"written: {path}")


def _default_page(runs: list[Path]) -> Path:
    """In the run's folder; for a comparison, which belongs to no single run, in the current folder."""
    first = runs[0] if runs[0].is_dir() else runs[0].parent
    return first / "report.html" if len(runs) == 1 else Path("comparison.html")


def _write_page(page: str, path: Path) -> Path:
    if path.is_dir():
        path = path / "report.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page.encode())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; choose another file with --out") from None
    return path


def _save_images(path: Path, folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    from potluck.report.headless_browser import save_figure_images

    return save_figure_images(path, folder)
