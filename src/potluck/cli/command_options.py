"""Options that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AsJson", "Data", "JobFile", "Quiet", "Sets", "SharedMemory", "Threads", "job_file_path"]

JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="A job.toml, or a folder that contains one.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting, as in rounds.local.lr=0.1; repeatable. Paths are relative to the current folder.",
    ),
]
Data = Annotated[Path | None, typer.Option("--data", help="Folder to search for data before $POTLUCK_DATA.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=0, help="Worker threads besides the main one (default: use all cores).")
]
SharedMemory = Annotated[
    bool,
    typer.Option("--shared-memory", help="Exchange large messages with processes on this host through shared memory."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only the result.")]


def job_file_path(given: Path) -> Path:
    """The job's file: a folder stands for the job.toml in it."""
    return given / "job.toml" if given.is_dir() else given
