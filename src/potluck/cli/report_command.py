"""`potluck report`: one HTML file that shows a run, or several beside each other."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli.command_options import AsJson
from potluck.errors import RunError

__all__ = ["report_command"]

Folders = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs; several are compared.")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="The file to write (default: report.html in the run's folder).")
]
Open = Annotated[bool, typer.Option("--open", help="Show it in the web browser.")]
Png = Annotated[
    Path | None, typer.Option("--png", metavar="DIR", help="Save each figure as PNG too (needs Chromium or Chrome).")
]


def report_command(
    runs: Folders, out: Out = None, show: Open = False, png: Png = None, as_json: AsJson = False
) -> None:
    """Write a page with everything there is to see of a run; it needs no network."""
    from potluck.report import render_report

    began = time.perf_counter()
    written = render_report(runs)
    path = _write_page(written, out or _default_path(runs))
    pictures = _save_images(path, png)
    if as_json:
        found = {"report": str(path), "bytes": path.stat().st_size, "pictures": [str(one) for one in pictures]}
        typer.echo(json.dumps({**found, "seconds": round(time.perf_counter() - began, 3)}))
    else:
        typer.echo(f"written: {path}")
        for picture in pictures:
            typer.echo(f"written: {picture}")
    if show:
        typer.launch(path.resolve().as_uri())


def _default_path(runs: list[Path]) -> Path:
    """In the run's own folder; a comparison beside it, since it belongs to none."""
    first = runs[0] if runs[0].is_dir() else runs[0].parent
    return first / "report.html" if len(runs) == 1 else Path("comparison.html")


def _write_page(written: str, path: Path) -> Path:
    """Written aside and renamed, so that a browser never sees half a page."""
    if path.is_dir():
        path = path / "report.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".html", delete=False) as file:
            file.write(written)
        aside = Path(file.name)
        aside.chmod(0o644)
        aside.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; choose another place with --out") from None
    return path


def _save_images(path: Path, folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    from potluck.report.headless_browser import save_figure_images

    return save_figure_images(path, folder)
