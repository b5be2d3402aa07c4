"""`potluck run` and `potluck resume`: simulate a job, show its progress and print a summary."""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli import summary_text
from potluck.cli.command_options import AsJson, Data, JobFile, Quiet, Sets, Threads, job_file_path
from potluck.cli.console import log_to_stderr
from potluck.cli.progress_table import ProgressDisplay, choose_display
from potluck.cli.stop_signal import StopSignal
from potluck.errors import RunError, StorageError

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
_KEPT = "(live runs; default: as the run was started)."
KeptListen = Annotated[
    str | None, typer.Option("--listen", metavar="HOST:PORT", help=f"The address to listen on {_KEPT}")
]
KeptCerts = Annotated[Path | None, typer.Option("--certs", help=f"Use mutual TLS with this folder {_KEPT}")]
KeptInsecure = Annotated[
    bool | None, typer.Option("--insecure/--no-insecure", help=f"Accept devices on other machines without TLS {_KEPT}")
]
KeptWait = Annotated[
    float | None,
    typer.Option("--wait", min=0.0, help=f"Seconds to wait at most for rounds.least devices to be back {_KEPT}"),
]
KeptHours = Annotated[
    float | None, typer.Option("--token-hours", min=0.01, help=f"Hours until the join token expires {_KEPT}")
]
KeptEach = Annotated[
    bool | None, typer.Option("--token-each/--no-token-each", help=f"Issue a separate token for each device {_KEPT}")
]
KeptDiscover = Annotated[
    bool | None, typer.Option("--discover/--no-discover", help=f"Let devices find it by multicast {_KEPT}")
]
KeptSharedMemory = Annotated[
    bool | None, typer.Option("--shared-memory/--no-shared-memory", help=f"Exchange through shared memory {_KEPT}")
]
KeptEtcd = Annotated[str | None, typer.Option("--etcd", metavar="URL[,URL]", help=f"Let etcd decide who leads {_KEPT}")]
KeptLeaderLease = Annotated[
    float | None,
    typer.Option("--leader-lease", min=1.0, help=f"Seconds until a silent leader has lost the run {_KEPT}"),
]
KeptStandbyWait = Annotated[
    float | None,
    typer.Option("--standby-wait", min=0.0, help=f"Seconds that a commit waits for a standby in sync {_KEPT}"),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, such as runs/20250101-120000-…")]

TakeOver = Annotated[
    bool,
    typer.Option("--take-over", help="Resume although a process on another machine, which is dead, holds the folder."),
]


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
    listen: KeptListen = None,
    certs: KeptCerts = None,
    insecure: KeptInsecure = None,
    wait: KeptWait = None,
    token_hours: KeptHours = None,
    token_each: KeptEach = None,
    discover: KeptDiscover = None,
    shared_memory: KeptSharedMemory = None,
    etcd: KeptEtcd = None,
    leader_lease: KeptLeaderLease = None,
    standby_wait: KeptStandbyWait = None,
    take_over: TakeOver = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run from its latest checkpoint. A live run keeps the options that it was started with."""
    with StopSignal() as stopping, choose_display(quiet or as_json, stopping) as shown:
        from potluck.run import resume
        from potluck.run.live_options import ResumeOptions
        from potluck.run.live_status import is_live_run

        add_cwd_to_path()
        options = ResumeOptions(
            listen=listen, certs=certs, insecure=insecure, wait_s=wait, token_hours=token_hours,
            token_each=token_each, discover=discover, shared_memory=shared_memory, etcd=etcd,
            leader_lease_s=leader_lease, standby_wait_s=standby_wait,
        )  # fmt: skip
        watch = RunObserver(shown)
        if is_live_run(run):
            from potluck.cli.serve_command import LiveRunObserver

            log_to_stderr(logging.WARNING)
            live = watch = LiveRunObserver(shown, stopping)
            options = replace(options, observer=live)
        result = resume(
            run, overrides=settings or [], data=data, threads=threads, watch=watch, stopping=stopping,
            take_over=take_over, options=options,
        )  # fmt: skip
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
    """Return the folder, or raise an error where it cannot be written."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    problem = f"cannot keep the run in {folder}: {existing} cannot be written; choose another folder with --out"
    if not existing.is_dir():
        raise RunError(problem)
    if not os.access(existing, os.W_OK):
        raise StorageError(problem)
    return folder
