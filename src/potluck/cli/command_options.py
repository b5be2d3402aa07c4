"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AsJson", "Data", "JobFile", "Quiet", "Sets", "SharedMemory", "Threads", "job_file_path"]

JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="A job.toml, or the folder that holds one.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, as in rounds.local.lr=0.1; may be repeated. Files are those of the current folder.",
    ),
]
Data = Annotated[Path | None, typer.Option("--data", help="Look for data here first, then in $POTLUCK_DATA.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=0, help="Threads beside the main one (default: all cores).")
]
SharedMemory = Annotated[
    bool, typer.Option("--shared-memory", help="Exchange long messages with processes of this host through memory.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; one line at the end.")]


def job_file_path(given: Path) -> Path:
    """The job's file, where a folder may stand for the job.toml in it."""
    return given / "job.toml" if given.is_dir() else given
