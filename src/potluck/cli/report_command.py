"""`potluck report`, `export` and `ui`: a run as an HTML page, as files for other tools, or on a local web page."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli.command_options import AsJson
from potluck.errors import RunError, UserError

__all__ = ["export_command", "report_command", "ui_command"]


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

Root = Annotated[Path, typer.Argument(metavar="RUNS", help="A folder of runs, or one run.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="The port to listen on (0: any free one).")]
Host = Annotated[
    str, typer.Option("--host", help="The address to listen on; on any but loopback, others can read the runs.")
]


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
    from potluck.atomic_file import write_atomically

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


def ui_command(runs: Root = Path("runs"), port: Port = 8765, host: Host = "127.0.0.1", show: Open = False) -> None:
    """Follow runs in the web browser. Ctrl-C ends the page, not the runs."""
    try:
        from potluck.report.report_server import create_server, is_loopback
    except ImportError as error:
        raise UserError(f"the page needs {error.name}; install it with: pip install 'potluck[ui]'") from None
    if not runs.is_dir():
        raise UserError(
            f"there is no folder {runs}; name a folder of runs, such as `runs`, where `potluck run` puts them"
        )
    listening = _open_socket(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/"
    typer.echo(f"following {runs} at {address} (Ctrl-C to end)")
    if not is_loopback(host):
        typer.echo("anyone who can reach this address can read the runs", err=True)
    if show:
        typer.launch(address)
    _lower_priority()
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        create_server(runs, host).run(sockets=[listening])


def _open_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port or --host") from None
    return listening


def _lower_priority() -> None:
    """The page must not slow down runs on the same machine."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
