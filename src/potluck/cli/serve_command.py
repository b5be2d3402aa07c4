"""`potluck serve` and `potluck lab`: coordinate a live run, on real devices or on processes of this machine."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from potluck.cli.command_options import AsJson, Data, JobFile, Quiet, Sets, SharedMemory, job_file_path
from potluck.cli.console import log_to_stderr
from potluck.cli.device_table import JoiningDevices
from potluck.cli.progress_table import choose_display
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
    from potluck.run import Result
    from potluck.run.live_run import ServeOptions
    from potluck.run.live_status import LiveStatus
    from potluck.run.run_store import RunStore
    from potluck.worlds.live.security.admission_policy import AdmissionPolicy

__all__ = ["lab_command", "resume_live_run", "serve_command"]

Gather = Callable[[JoiningDevices], None]  # shows which devices have joined

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
Hours = Annotated[float, typer.Option("--token-hours", min=0.01, help="Hours until the join token expires.")]


class _TokenOptions(NamedTuple):
    """What kind of join tokens to issue."""

    hours: float
    per_device: bool = False

    def make_token(self, gate: AdmissionPolicy, name: str) -> str:
        return gate.issue_token(datetime.now(UTC) + timedelta(hours=self.hours), [name] if self.per_device else None)


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
    out: Out = None,
    data: Data = None,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Coordinate a live run. Prints how devices join, waits for them, then trains."""
    with StopSignal() as stopping, choose_display(quiet or as_json, stopping) as shown:
        from potluck.run.run_store import RunStore

        wanted, folder = _resolve_job(job, settings, seed, out, data)
        locator = _listen_locator(listen, certs, insecure)
        watch = RunObserver(shown)
        keeper = RunStore.create_run(wanted, folder, watch, stopping)
        tokens = _TokenOptions(token_hours, token_each)
        result = _serve_run(
            wanted, keeper, locator, certs, data, wait, tokens, watch.show_joining, discover, shared_memory
        )
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
        from potluck.run.run_store import RunStore

        wanted, folder = _resolve_job(job, settings, seed, out, data)
        watch = RunObserver(shown)
        keeper = RunStore.create_run(wanted, folder, watch, stopping)
        result = run_lab(keeper, data, wait, watch.show_joining)
    print_and_exit(result, watch, as_json, quiet)


def run_lab(keeper: RunStore, data: Path | None, wait: float, gather: Gather = lambda muster: None) -> Result:
    """Serve the run, with every device of the fleet as a process on this machine."""
    from potluck.run import build_setup
    from potluck.run.lab import LabDevices, free_loopback_address, uses_direct_links
    from potluck.run.live_run import ServeOptions, serve_run
    from potluck.worlds.live.zenoh_session import Endpoint

    job, address = keeper.job, free_loopback_address()
    gate = _open_admission(keeper, None)
    log_to_stderr(logging.WARNING)
    with _keep_live_status(keeper, address, None, gather, lab=True) as told:
        setup = build_setup(job, None, data, elsewhere=keeper.tensors is not None)
        with LabDevices(job, address, gate, data) as crew:
            place = Endpoint(listen=(address,), lease=float(job.fleet.lease), direct=uses_direct_links(job))
            door = ServeOptions(
                place,
                gate,
                wait,
                emulate_fleet=True,
                on_membership=told,
                on_listening=partial(told, {}),
                on_begin=crew.start_fault_script,
            )
            return serve_run(setup, keeper, door)


def resume_live_run(keeper: RunStore, ticket: LiveStatus, data: Path | None, gather: Gather) -> Result:
    """Resume a live run at the same address, so that its devices find it; a lab starts its devices again."""
    if ticket.lab:
        return run_lab(keeper, data, 60.0, gather)
    certs = Path(ticket.certs) if ticket.certs else None
    return _serve_run(keeper.job, keeper, ticket.listen, certs, data, 60.0, _TokenOptions(24.0), gather)


def _serve_run(
    job: Job,
    keeper: RunStore,
    locator: str,
    certs: Path | None,
    data: Path | None,
    wait: float,
    tokens: _TokenOptions,
    gather: Gather,
    discover: bool = False,
    shared_memory: bool = False,
) -> Result:
    from potluck.run import build_setup
    from potluck.run.lab import uses_direct_links
    from potluck.run.live_run import ServeOptions, serve_run
    from potluck.worlds.live.security.tls_credentials import TlsCredentials
    from potluck.worlds.live.zenoh_session import Endpoint

    gate = _open_admission(keeper, certs)
    tls = TlsCredentials.from_bundle(certs / "coordinator") if certs is not None else None
    if tls is not None:
        tls.check_files()
    lease = float(job.fleet.lease)
    place = Endpoint(
        listen=(locator,),
        tls=tls,
        access_control=gate.access_control(),
        lease=lease,
        direct=uses_direct_links(job),
        discover=discover,
        shared_memory=shared_memory,
    )
    log_to_stderr(logging.WARNING)
    how = _join_commands(gate, locator, certs)
    with _keep_live_status(keeper, locator, certs, gather, how) as told:
        setup = build_setup(job, None, data, elsewhere=keeper.tensors is not None)

        def listening() -> None:
            _print_join_commands(gate, locator, how, tokens)
            told({})

        door: ServeOptions = ServeOptions(place, gate, wait, on_membership=told, on_listening=listening)
        return serve_run(setup, keeper, door)


def _resolve_job(
    job: Path, settings: list[str] | None, seed: int | None, out: Path | None, data: Path | None
) -> tuple[Job, Path]:
    from potluck.job import load_job
    from potluck.run import resolve_auto_settings

    add_cwd_to_path()
    wanted = load_job(job_file_path(job), [*(settings or []), *([f"seed={seed}"] if seed is not None else [])])
    if wanted.timing_only:
        raise UserError("timing_only: a live run always trains; use `potluck run` for timing only")
    return resolve_auto_settings(wanted, data), check_writable(out or Path("runs") / new_run_name(wanted.recipe))


def _open_admission(keeper: RunStore, certs: Path | None) -> AdmissionPolicy:
    """Tokens are bound to the run, not to its settings: they stay valid when it is resumed with changes."""
    from potluck.worlds.live.security.admission_policy import AdmissionPolicy

    assert keeper.folder is not None
    names = [device.name for device in keeper.job.fleet.members]
    return AdmissionPolicy.for_run(keeper.folder, keeper.folder.name, names, certs)


def _listen_locator(listen: str, certs: Path | None, insecure: bool) -> str:
    """Where to listen; on any address but loopback only with TLS, unless `insecure` waives it."""
    from potluck.worlds.live.security.tls_credentials import needs_tls

    address = listen or ("0.0.0.0:7447" if certs is not None or insecure else "127.0.0.1:7447")
    if ":" not in address:
        address += ":7447"
    locator = f"{'tls' if certs is not None else 'tcp'}/{address}"
    if needs_tls(locator) and certs is None and not insecure:
        raise UserError(
            f"{address} can be reached by other machines, which needs certificates: create them with"
            " `potluck certs init` and pass --certs, or --insecure if you trust everyone on this network"
        )
    return locator


def _join_commands(gate: AdmissionPolicy, locator: str, certs: Path | None) -> dict[str, str]:
    """The join command of each device, without its token."""
    from potluck.worlds.live.security.local_addresses import local_address

    protocol, _, where = locator.partition("/")
    host, _, port = where.rpartition(":")
    host = (local_address() or "127.0.0.1") if host in ("0.0.0.0", "[::]") else host
    option = "--certs" if certs is not None else "--name"
    return {name: f"potluck join {protocol}/{host}:{port} {option} {name}" for name in sorted(gate.common_names)}


def _print_join_commands(gate: AdmissionPolicy, locator: str, how: Mapping[str, str], tokens: _TokenOptions) -> None:
    typer.echo(f"listening on {locator}; run on each device, within {tokens.hours:g} h:", err=True)
    for name, command in how.items():
        typer.echo(f"  {command} --token {tokens.make_token(gate, name)}", err=True)
    if locator.startswith("tcp/127.0.0.1:"):
        typer.echo(
            "only processes of this machine can join; for other machines create certificates (`potluck certs init`) and"
            " pass --certs FOLDER, or --insecure if you trust everyone on this network",
            err=True,
        )


@contextlib.contextmanager
def _keep_live_status(
    keeper: RunStore,
    locator: str,
    certs: Path | None,
    gather: Gather,
    how: Mapping[str, str] = {},
    *,
    lab: bool = False,
) -> Iterator[Callable[[Mapping[str, int]], None]]:
    """Keep live.json in the run's folder up to date, and show the missing devices until all have joined once."""
    from potluck.run import live_status as tickets

    assert keeper.folder is not None
    folder = keeper.folder
    ticket = tickets.LiveStatus.for_this_process(locator, certs)
    ticket.lab = lab
    names = {device.name for device in keeper.job.fleet.members}
    met: set[str] = set()

    def update_members(here: Mapping[str, int]) -> None:
        ticket.here, ticket.missing = dict(here), sorted(names - here.keys())
        tickets.write_live_status(folder, ticket)
        if not met >= names:
            met.update(here)
            gather(JoiningDevices(keeper.job.fleet, dict(here), how))

    tickets.write_live_status(folder, ticket)
    try:
        yield update_members
        ticket.ended = "the run is over"
    except BaseException as error:
        ticket.ended = f"{type(error).__name__}: {error}"
        raise
    finally:
        tickets.write_live_status(folder, ticket)
