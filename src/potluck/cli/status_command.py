"""`potluck status` and `potluck stop`: look at a live run from another terminal, or stop it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potluck.cli.command_options import AsJson
from potluck.cli.number_format import format_seconds, score_texts
from potluck.errors import RunError

if TYPE_CHECKING:
    from potluck.journal.storage_warning import StorageWarning
    from potluck.run.live_status import LiveStatus

__all__ = ["promote_command", "status_command", "stop_command"]

RunFolder = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="The folder of a run (default: the newest live run in runs/).")
]


def status_command(run: RunFolder = None, as_json: AsJson = False) -> None:
    """Show the progress of a live run, and which devices have joined."""
    import msgspec

    from potluck.journal.standby_status import read_standby_sentences
    from potluck.journal.storage_warning import read_warning
    from potluck.run import live_status

    folder = run or _newest_live_run()
    status, warning = live_status.read_live_status(folder), read_warning(folder)
    if status is None and warning is not None:
        _print_vanished(folder, warning, as_json)
        raise typer.Exit(0)
    if status is None:
        raise RunError(
            f"{folder} is not the folder of a live run; for simulated runs use `potluck report` or `potluck ui`"
        )
    figures = _latest_figures(folder)
    if as_json:
        state = "running" if status.is_alive else status.ended or "gone"
        typer.echo(json.dumps({"folder": str(folder), "state": state, "here": status.joined,
                               "missing": status.missing, "listen": status.listen, "term": status.term,
                               "standbys": [msgspec.to_builtins(standby) for standby in status.standbys],
                               "follows": msgspec.to_builtins(status.follows), **_warning_text(warning),
                               **figures}))  # fmt: skip
        raise typer.Exit(0 if status.is_alive else 1)
    typer.echo(f"{folder}: {_state_text(status)}")
    if warning is not None:
        typer.echo(f"  warning: {warning.sentence()}")
    if figures:
        typer.echo("  " + ", ".join(_figure_texts(figures)))
    for sentence in read_standby_sentences(folder):
        typer.echo(f"  {sentence}")
    for name, incarnation in sorted(status.joined.items()):
        typer.echo(f"  {name}: joined" + (f" (incarnation {incarnation})" if incarnation > 1 else ""))
    for name in status.missing:
        typer.echo(f"  {name}: missing")
    raise typer.Exit(0 if status.is_alive else 1)


def promote_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a standby, on its own machine.")],
) -> None:
    """Make a standby the leader of its run. The former leader must have stopped, or is cut off by its devices."""
    from potluck.run.promotion import promote

    typer.echo(promote(run))


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


def _print_vanished(folder: Path, warning: StorageWarning, as_json: bool) -> None:
    """The folder is gone, but a process still leads its run."""
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "state": "running", **_warning_text(warning)}))
    else:
        typer.echo(f"{folder}: running (process {warning.pid})\n  warning: {warning.sentence()}")


def _warning_text(warning: StorageWarning | None) -> dict[str, str]:
    return {} if warning is None else {"warning": warning.sentence()}


def _newest_live_run() -> Path:
    files = sorted(Path("runs").glob("*/live.json"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise RunError("no live run in runs/; name its folder, or start one with `potluck serve` or `potluck lab`")
    return files[-1].parent


def _state_text(status: LiveStatus) -> str:
    if status.is_alive and status.follows is not None:
        return f"standing by (process {status.pid}, {status.listen})"
    if status.is_alive:
        return f"running (process {status.pid}, {status.listen})"
    return status.ended or f"process {status.pid} is gone; continue with `potluck resume`"


def _latest_figures(folder: Path) -> dict[str, Any]:
    """The latest round, metrics and loss in the journal."""
    from potluck.journal import RecordDecoder, Scalar, Span, read_journal_tail

    latest: dict[str, Any] = {}
    decoder = RecordDecoder()
    for record in read_journal_tail(folder / "journal.jsonl", 1 << 20, decoder):
        if isinstance(record, Span) and record.name == "round":
            latest["round"], latest["time_s"] = record.fields.get("round"), record.end
        elif isinstance(record, Scalar) and (record.name == "loss" or record.name.startswith("test_")):
            latest[record.name] = record.value
    return {**latest, **({"unreadable": decoder.unreadable} if decoder.unreadable else {})}


def _figure_texts(figures: dict[str, Any]) -> list[str]:
    from potluck.journal import describe_unreadable

    texts = []
    if figures.get("round") is not None:
        texts.append(f"round {figures['round'] + 1} at {format_seconds(figures['time_s'])}")
    score = {name.removeprefix("test_"): value for name, value in figures.items() if name.startswith("test_")}
    texts += [text for text in score_texts(score) if not text.startswith("loss ")]
    if "loss" in figures:
        texts.append(f"loss {figures['loss']:.4g}")
    return [*texts, describe_unreadable(figures["unreadable"])] if "unreadable" in figures else texts
