"""`potluck serve` and `potluck lab`: coordinate a live run, on real devices or on processes of this machine."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.command_options import AsJson, Data, JobFile, Quiet, Sets, SharedMemory, job_file_path
from potluck.cli.console import log_to_stderr
from potluck.cli.device_table import JoiningDevices
from potluck.cli.progress_table import ProgressDisplay, choose_display
from potluck.cli.run_command import (
    Out,
    RunObserver,
    Seed,
    add_cwd_to_path,
    check_writable,
    new_run_name,
    print_and_exit,
)
from potluck.cli.stop_signal import StopSignal
from potluck.errors import UserError

if TYPE_CHECKING:
    from potluck.job import Job
    from potluck.run.live_run import LiveRun

__all__ = ["LiveRunObserver", "lab_command", "serve_command"]

Listen = Annotated[
    str,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="The address to listen on (default: 127.0.0.1:7447; with --certs 0.0.0.0:7447).",
    ),
]
Certs = Annotated[
    Path | None,
    typer.Option(
        "--certs", envvar="POTLUCK_CERTS", help="Use mutual TLS with this folder, created by `potluck certs init`."
    ),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Accept devices on other machines without TLS.")]
Wait = Annotated[
    float,
    typer.Option("--wait", min=0.0, help="Seconds to wait for all devices before starting without the missing ones."),
]
Discover = Annotated[
    bool, typer.Option("--discover", help="Let devices on the local network find this coordinator by multicast.")
]
Each = Annotated[bool, typer.Option("--token-each", help="Issue a separate token for each device, valid for no other.")]
Standby = Annotated[
    bool,
    typer.Option("--standby", help="Follow the leader of this job, and lead when it is gone (see --etcd, --connect)."),
]
Connect = Annotated[
    str,
    typer.Option("--connect", metavar="HOST:PORT", help="With --standby: the leader's address (default: from etcd)."),
]
StandbyToken = Annotated[
    str,
    typer.Option(
        "--token",
        help="With --standby: the token for standbys that `potluck serve` prints; not needed with --certs.",
    ),
]
Etcd = Annotated[
    str,
    typer.Option(
        "--etcd", metavar="URL[,URL]", help="Let etcd decide who leads, such as http://192.168.1.5:2379; for standbys."
    ),
]
LeaderLease = Annotated[
    float | None,
    typer.Option(
        "--leader-lease", min=1.0, help="With --etcd: seconds until a silent leader has lost the run (default: 5)."
    ),
]
StandbyWait = Annotated[
    float,
    typer.Option(
        "--standby-wait",
        min=0.0,
        help="Seconds that a commit waits for a standby that is in sync before it goes on without it; 0: never wait.",
    ),
]
Hours = Annotated[float, typer.Option("--token-hours", min=0.01, help="Hours until the join token expires.")]


class LiveRunObserver(RunObserver):
    """Shows which devices have joined until all have, and prints how they join; implements `LiveObserver`."""

    def __init__(
        self,
        display: ProgressDisplay,
        stopping: Callable[[], bool],
    ) -> None:
        super().__init__(display)
        self.should_stop = stopping
        self.on_round = self.__call__
        self._join_commands: Mapping[str, str] = {}
        self._ever_joined: set[str] = set()

    def on_listening(self, run: LiveRun) -> None:
        if run.devices is None:
            self._join_commands = _join_commands(run)
            self._print_join_commands(run)

    def on_membership(self, run: LiveRun, joined: Mapping[str, int]) -> None:
        fleet = run.store.job.fleet
        if not self._ever_joined >= {device.name for device in fleet.members}:
            self._ever_joined.update(joined)
            self.display.show_joining(JoiningDevices(fleet, dict(joined), self._join_commands))

    def on_begin(self, run: LiveRun) -> None:
        pass

    def _print_join_commands(self, run: LiveRun) -> None:
        hours, each = run.serving.token_hours, run.serving.token_each
        typer.echo(f"listening on {run.locator}; run on each device, within {hours:g} h:", err=True)
        for name, command in self._join_commands.items():
            token = run.issue_token(name if each else None, hours)
            typer.echo(f"  {command} --token {token}", err=True)
        if not run.locator.startswith("tcp/127.0.0.1:") or run.serving.etcd:
            typer.echo(f"a second coordinator follows with: {_standby_command(run)}", err=True)
        if run.locator.startswith("tcp/127.0.0.1:"):
            typer.echo(
                "only processes of this machine can join; for other machines create certificates"
                " (`potluck certs init`) and pass --certs FOLDER, or --insecure if you trust everyone on this network",
                err=True,
            )
        elif run.certs is not None and _is_loopback_only(run):
            typer.echo(
                "only processes of this machine can join: the coordinator's certificate carries no other address;"
                " issue one with `potluck certs issue coordinator --host ADDRESS`",
                err=True,
            )


def serve_command(
    job: JobFile,
    settings: Sets = None,
    listen: Listen = "",
    certs: Certs = None,
    insecure: Insecure = False,
    wait: Wait = 600.0,
    token_hours: Hours = 24.0,
    token_each: Each = False,
    discover: Discover = False,
    shared_memory: SharedMemory = False,
    standby: Standby = False,
    connect: Connect = "",
    token: StandbyToken = "",
    etcd: Etcd = "",
    leader_lease: LeaderLease = None,
    standby_wait: StandbyWait = 5.0,
    out: Out = None,
    data: Data = None,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Coordinate a live run. Prints how devices join, waits for them, then trains."""
    if (connect or token) and not standby:
        raise UserError("--connect and --token are for a standby; add --standby, or leave them out")
    if leader_lease is not None and not etcd:
        raise UserError("--leader-lease is how long etcd lets a silent leader lead; add --etcd URL, or leave it out")
    with StopSignal() as stopping, choose_display(quiet or as_json, stopping) as shown:
        from potluck.run.live_options import ServeOptions
        from potluck.run.standby import StandbyOptions, serve_in_turn

        wanted, folder = _load_live_job(job, settings, seed, out)
        watch = LiveRunObserver(shown, stopping)
        options = ServeOptions(
            listen=listen, certs=certs, insecure=insecure, wait_s=wait, discover=discover, shared_memory=shared_memory,
            token_hours=token_hours, token_each=token_each, etcd=etcd, leader_lease_s=leader_lease or 5.0,
            standby_wait_s=standby_wait,
        )  # fmt: skip
        result = serve_in_turn(
            wanted,
            folder=out,
            new_folder=folder,
            data=data,
            options=options,
            following=StandbyOptions(connect, token) if standby else None,
            observer=watch,
        )
    if result is None:
        typer.echo("the standby was stopped; the run goes on without it", err=True)
        raise typer.Exit(130)
    print_and_exit(result, watch, as_json, quiet)


def lab_command(
    job: JobFile,
    settings: Sets = None,
    out: Out = None,
    data: Data = None,
    seed: Seed = None,
    wait: Wait = 120.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a job live on this machine. Each device is a process whose speed and links are emulated."""
    with StopSignal() as stopping, choose_display(quiet or as_json, stopping) as shown:
        from potluck.run.lab import lab
        from potluck.run.live_options import LabOptions

        wanted, folder = _load_live_job(job, settings, seed, out)
        watch = LiveRunObserver(shown, stopping)
        result = lab(wanted, folder=folder, data=data, options=LabOptions(wait_s=wait), observer=watch)
    print_and_exit(result, watch, as_json, quiet)


def _load_live_job(job: Path, settings: list[str] | None, seed: int | None, out: Path | None) -> tuple[Job, Path]:
    from potluck.job import load_job

    add_cwd_to_path()
    log_to_stderr(logging.WARNING)
    wanted = load_job(job_file_path(job), [*(settings or []), *([f"seed={seed}"] if seed is not None else [])])
    return wanted, check_writable(out or Path("runs") / new_run_name(wanted.recipe))


def _is_loopback_only(run: LiveRun) -> bool:
    """Whether devices on other machines would reach the coordinator but not accept its certificate."""
    from potluck.run.join_address import is_loopback_address
    from potluck.worlds.live.security.tls_credentials import needs_tls

    host = run.join_locator.partition("/")[2].rpartition(":")[0].strip("[]")
    return needs_tls(run.locator) and is_loopback_address(host)


def _join_commands(run: LiveRun) -> dict[str, str]:
    """The join command of each device, without its token."""
    option = "--certs" if run.certs is not None else "--name"
    names = sorted(run.admission.common_names)
    return {name: f"potluck join {run.join_locator} {option} {shlex.quote(name)}" for name in names}


def _standby_command(run: LiveRun) -> str:
    proof = f"--token {run.issue_standby_token()}" if run.certs is None else "--certs FOLDER"
    where = "--etcd URL" if run.serving.etcd else f"--connect {run.join_locator}"
    return f"potluck serve JOB --standby {where} {proof}"
