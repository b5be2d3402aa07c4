"""`potluck run` and `potluck resume`: a job in the simulated world, shown while it goes and summed up at its end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli import summary_text
from potluck.cli.command_options import AsJson, Data, JobFile, Quiet, Sets, Threads, job_file_path
from potluck.cli.progress_table import ProgressDisplay, choose_display
from potluck.cli.stop_signal import StopSignal
from potluck.errors import RunError

if TYPE_CHECKING:
    from potluck.cli.joining_devices import JoiningDevices
    from potluck.run import Result
    from potluck.run.live_status import LiveStatus
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

Out = Annotated[Path | None, typer.Option("--out", help="Where to keep the run (default: a new folder in runs/).")]
TimingOnly = Annotated[bool, typer.Option("--timing-only", help="No mathematics: the same protocol, bytes, seconds.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Another seed than the job's.")]
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
    """Simulate a job: real training, modelled time."""
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
    """Take a run up where it was stopped."""
    with StopSignal() as stopping, choose_display(quiet or as_json, stopping) as shown:
        from potluck.run import live_status as tickets
        from potluck.run import resume as again

        add_cwd_to_path()
        watch = RunObserver(shown)
        ticket = tickets.read_live_status(run)
        if ticket is not None:
            result = _resume_live_run(run, ticket, settings or [], data, watch, stopping)
        else:
            result = again(run, overrides=settings or [], data=data, threads=threads, watch=watch, stopping=stopping)
    print_and_exit(result, watch, as_json, quiet)


def _resume_live_run(
    run: Path, ticket: LiveStatus, settings: list[str], data: Path | None, watch: RunObserver, stopping: StopSignal
) -> Result:
    from potluck.cli.serve_command import resume_live_run
    from potluck.job import load_job
    from potluck.run.run_store import RunStore

    if ticket.is_alive:
        raise RunError(f"process {ticket.pid} still leads {run}; stop it first with `potluck stop {run}`")
    return resume_live_run(
        RunStore.reopen_run(load_job(run / "job.toml", settings, resolved=True), run, watch, stopping),
        ticket,
        data,
        watch.show_joining,
    )


class RunObserver:
    """Passes every round on and remembers who keeps the run."""

    def __init__(self, shown: ProgressDisplay) -> None:
        self._display = shown
        self.store: RunStore | None = None

    def __call__(self, keeper: RunStore, now: float) -> None:
        self.store = keeper
        self._display(keeper, now)

    def show_joining(self, muster: JoiningDevices) -> None:
        self._display.show_joining(muster)


def add_cwd_to_path() -> None:
    """A job may name code of the user's own; it is looked for in the current folder too."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)


def print_and_exit(result: Result, watch: RunObserver, as_json: bool, quiet: bool) -> None:
    summary_text.print_summary(result, watch.store, as_json=as_json, quiet=quiet)
    raise typer.Exit(result.exit_code)


def new_run_name(recipe: str) -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{recipe}-{os.urandom(2).hex()}"


def check_writable(folder: Path) -> Path:
    """The folder, known to be one that can be written."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise RunError(f"cannot keep the run in {folder}: {there} cannot be written; choose another place with --out")
    return folder
