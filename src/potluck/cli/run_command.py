"""`potluck run` and `potluck resume`: simulate a job, show its progress and print a summary."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli import summary_text
from potluck.cli.command_options import AsJson, Data, JobFile, Quiet, Sets, Threads, job_file_path
from potluck.cli.console import log_to_stderr
from potluck.cli.progress_table import ProgressDisplay, choose_display
from potluck.cli.stop_signal import StopSignal
from potluck.errors import RunError

if TYPE_CHECKING:
    from potluck.run import Result
    from potluck.run.run_store import RunStore

__all__ = [
    "Out",
    "RunObserver",
    "Seed",
    "add_cwd_to_path",
    "check_writable",
    "new_run_name",
    "print_and_exit",
    "resume_command",
    "run_command",
]

Out = Annotated[Path | None, typer.Option("--out", help="The folder for the run (default: a new one in runs/).")]
TimingOnly = Annotated[bool, typer.Option("--timing-only", help="Do not train: the same protocol, bytes and seconds.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Override the job's seed.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, such as runs/20250101-120000-…")]


def run_command(
    job: JobFile,
    settings: Sets = None,
    out: Out = None,
    data: Data = None,
    threads: Threads = None,
    timing_only: TimingOnly = False,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Simulate a job. The training is real; time and links are modelled."""
    with StopSignal() as stopping, choose_display(quiet or as_json, stopping) as shown:
        from potluck.job import load_job
        from potluck.run import simulate

        add_cwd_to_path()
        overrides = [*(settings or []), *(["timing_only=true"] if timing_only else [])]
        wanted = load_job(job_file_path(job), overrides if seed is None else [*overrides, f"seed={seed}"])
        folder = check_writable(out or Path("runs") / new_run_name(wanted.recipe))
        watch = RunObserver(shown)
        result = simulate(wanted, folder=folder, data=data, threads=threads, watch=watch, stopping=stopping)
    print_and_exit(result, watch, as_json, quiet)


def resume_command(
    run: RunFolder,
    settings: Sets = None,
    data: Data = None,
    threads: Threads = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run from its latest checkpoint."""
    with StopSignal() as stopping, choose_display(quiet or as_json, stopping) as shown:
        from potluck.run import resume
        from potluck.run.live_status import is_live_run

        add_cwd_to_path()
        watch: RunObserver
        if is_live_run(run):
            from potluck.cli.serve_command import LiveRunObserver
            from potluck.run.lab import resume_live

            log_to_stderr(logging.WARNING)
            live = watch = LiveRunObserver(shown, stopping)
            result = resume_live(run, overrides=settings or [], data=data, observer=live)
        else:
            watch = RunObserver(shown)
            result = resume(run, overrides=settings or [], data=data, threads=threads, watch=watch, stopping=stopping)
    print_and_exit(result, watch, as_json, quiet)


class RunObserver:
    """Forwards every round to the display, and keeps the store of the run for the summary."""

    def __init__(self, display: ProgressDisplay) -> None:
        self.display = display
        self.store: RunStore | None = None

    def __call__(self, store: RunStore, now: float) -> None:
        self.store = store
        self.display(store, now)

    def elapsed_s(self) -> float:
        return self.display.elapsed_s()


def add_cwd_to_path() -> None:
    """Let a job name modules in the current folder."""
    if (cwd := os.getcwd()) not in sys.path:
        sys.path.insert(0, cwd)


def print_and_exit(result: Result, watch: RunObserver, as_json: bool, quiet: bool) -> None:
    summary_text.print_summary(result, watch.store, watch.elapsed_s(), as_json=as_json, quiet=quiet)
    raise typer.Exit(result.exit_code)


def new_run_name(recipe: str) -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{recipe}-{os.urandom(2).hex()}"


def check_writable(folder: Path) -> Path:
    """Return the folder, or raise RunError where it cannot be written."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise RunError(
            f"cannot keep the run in {folder}: {existing} cannot be written; choose another folder with --out"
        )
    return folder
