"""`potluck run` and `potluck resume`: a job in the simulated world, shown while it goes and summed up at its end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli import summary
from potluck.cli.live import Progress, progress
from potluck.cli.options import AsJson, Data, JobFile, Quiet, Sets, Threads, job_path
from potluck.cli.stopping import Stopping
from potluck.errors import RunError

if TYPE_CHECKING:
    from potluck.cli.muster import Muster
    from potluck.run import Result
    from potluck.run.keeper import Keeper
    from potluck.run.ticket import Ticket

__all__ = ["Out", "Remembering", "Seed", "claimed", "end", "find_own_code", "fresh_name", "resume", "run"]

Out = Annotated[Path | None, typer.Option("--out", help="Where to keep the run (default: a new folder in runs/).")]
TimingOnly = Annotated[bool, typer.Option("--timing-only", help="No mathematics: the same protocol, bytes, seconds.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Another seed than the job's.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, such as runs/20250101-120000-…")]


def run(
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
    with Stopping() as stopping, progress(quiet or as_json, stopping) as shown:
        from potluck.job import load
        from potluck.run import simulate

        find_own_code()
        overrides = [*(settings or []), *(["timing_only=true"] if timing_only else [])]
        wanted = load(job_path(job), overrides if seed is None else [*overrides, f"seed={seed}"])
        folder = claimed(out or Path("runs") / fresh_name(wanted.recipe))
        watch = Remembering(shown)
        result = simulate(wanted, folder=folder, data=data, threads=threads, watch=watch, stopping=stopping)
    end(result, watch, as_json, quiet)


def resume(
    run: RunFolder,
    settings: Sets = None,
    data: Data = None,
    threads: Threads = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Take a run up where it was stopped."""
    with Stopping() as stopping, progress(quiet or as_json, stopping) as shown:
        from potluck.run import resume as again
        from potluck.run import ticket as tickets

        find_own_code()
        watch = Remembering(shown)
        ticket = tickets.read(run)
        if ticket is not None:
            result = _resume_live(run, ticket, settings or [], data, watch, stopping)
        else:
            result = again(run, overrides=settings or [], data=data, threads=threads, watch=watch, stopping=stopping)
    end(result, watch, as_json, quiet)


def _resume_live(
    run: Path, ticket: Ticket, settings: list[str], data: Path | None, watch: Remembering, stopping: Stopping
) -> Result:
    from potluck.cli.serve import resume_live
    from potluck.job import load
    from potluck.run.keeper import Keeper

    if ticket.alive:
        raise RunError(f"process {ticket.pid} still leads {run}; stop it first with `potluck stop {run}`")
    return resume_live(Keeper.again(load(run / "job.toml", settings), run, watch, stopping), ticket, data, watch.gather)


class Remembering:
    """Passes every round on and remembers who keeps the run."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self.keeper: Keeper | None = None

    def __call__(self, keeper: Keeper, now: float) -> None:
        self.keeper = keeper
        self._shown(keeper, now)

    def gather(self, muster: Muster) -> None:
        self._shown.gather(muster)


def find_own_code() -> None:
    """A job may name code of the user's own; it is looked for in the current folder too."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)


def end(result: Result, watch: Remembering, as_json: bool, quiet: bool) -> None:
    summary.say(result, watch.keeper, as_json=as_json, quiet=quiet)
    raise typer.Exit(result.exit_code)


def fresh_name(recipe: str) -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{recipe}-{os.urandom(2).hex()}"


def claimed(folder: Path) -> Path:
    """The folder, known to be one that can be written."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise RunError(f"cannot keep the run in {folder}: {there} cannot be written; choose another place with --out")
    return folder
