"""`potluck status` and `potluck stop`: look at a live run from another terminal, or stop it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potluck.cli.command_options import AsJson
from potluck.cli.number_format import format_percent, format_seconds
from potluck.errors import RunError

if TYPE_CHECKING:
    from potluck.run.live_status import LiveStatus

__all__ = ["status_command", "stop_command"]

RunFolder = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="The folder of a run (default: the newest live run in runs/).")
]


def status_command(run: RunFolder = None, as_json: AsJson = False) -> None:
    """Show the progress of a live run, and which devices have joined."""
    from potluck.run import live_status

    folder = run or _newest_live_run()
    status = live_status.read_live_status(folder)
    if status is None:
        raise RunError(
            f"{folder} is not the folder of a live run; for simulated runs use `potluck report` or `potluck ui`"
        )
    figures = _latest_figures(folder)
    if as_json:
        state = "running" if status.is_alive else status.ended or "gone"
        typer.echo(json.dumps({"folder": str(folder), "state": state, "here": status.joined,
                               "missing": status.missing, "listen": status.listen, **figures}))  # fmt: skip
        raise typer.Exit(0 if status.is_alive else 1)
    typer.echo(f"{folder}: {_state_text(status)}")
    if figures:
        typer.echo("  " + ", ".join(_figure_texts(figures)))
    for name, incarnation in sorted(status.joined.items()):
        typer.echo(f"  {name}: joined" + (f" (incarnation {incarnation})" if incarnation > 1 else ""))
    for name in status.missing:
        typer.echo(f"  {name}: missing")
    raise typer.Exit(0 if status.is_alive else 1)


def stop_command(run: RunFolder = None) -> None:
    """Stop a live run at a point from which it can be resumed."""
    from potluck.run import live_status

    folder = run or _newest_live_run()
    status = live_status.request_stop(folder)
    for _ in range(300):
        if not (live_status.read_live_status(folder) or status).is_alive:
            typer.echo(f"{folder}: stopped; continue with: potluck resume {folder}")
            return
        time.sleep(0.1)
    raise RunError(f"{folder}: asked process {status.pid} to stop, but it has not after 30 s")


def _newest_live_run() -> Path:
    files = sorted(Path("runs").glob("*/live.json"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise RunError("no live run in runs/; name its folder, or start one with `potluck serve` or `potluck lab`")
    return files[-1].parent


def _state_text(status: LiveStatus) -> str:
    if status.is_alive:
        return f"running (process {status.pid}, {status.listen})"
    return status.ended or f"process {status.pid} is gone; continue with `potluck resume`"


def _latest_figures(folder: Path) -> dict[str, Any]:
    """The latest round, accuracy and loss in the journal."""
    from potluck.journal import Scalar, Span, read_journal_tail

    latest: dict[str, Any] = {}
    for record in read_journal_tail(folder / "journal.jsonl", 1 << 20):
        if isinstance(record, Span) and record.name == "round":
            latest["round"], latest["time_s"] = record.fields.get("round"), record.end
        elif isinstance(record, Scalar) and record.name in ("test_accuracy", "loss"):
            latest[record.name] = record.value
    return latest


def _figure_texts(figures: dict[str, Any]) -> list[str]:
    texts = []
    if figures.get("round") is not None:
        texts.append(f"round {figures['round'] + 1} at {format_seconds(figures['time_s'])}")
    if "test_accuracy" in figures:
        texts.append(f"accuracy {format_percent(figures['test_accuracy'])}")
    if "loss" in figures:
        texts.append(f"loss {figures['loss']:.4g}")
    return texts
