"""`potluck serve` and `potluck lab`: lead a live run, on real devices or on processes of this machine."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from potluck.cli.live import progress
from potluck.cli.logs import log_to_stderr
from potluck.cli.muster import Muster
from potluck.cli.options import AsJson, Data, JobFile, Quiet, Sets, SharedMemory, job_path
from potluck.cli.run import Out, Remembering, Seed, claimed, end, find_own_code, fresh_name
from potluck.cli.stopping import Stopping
from potluck.errors import UserError

if TYPE_CHECKING:
    from potluck.job import Job
    from potluck.run import Result
    from potluck.run.keeper import Keeper
    from potluck.run.live import Door
    from potluck.run.ticket import Ticket
    from potluck.worlds.live.security.gate import Gate

__all__ = ["lab", "resume_live", "serve"]

Gather = Callable[[Muster], None]  # shows who is here

Listen = Annotated[
    str,
    typer.Option("--listen", metavar="HOST:PORT", help="Where to listen (127.0.0.1, with --certs 0.0.0.0)."),
]
Certs = Annotated[
    Path | None,
    typer.Option("--certs", envvar="POTLUCK_CERTS", help="The folder made by `potluck certs init`: mutual TLS."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Listen beyond this machine without TLS.")]
Wait = Annotated[float, typer.Option("--wait", min=0.0, help="Seconds to wait for the fleet before beginning without.")]
Discover = Annotated[
    bool, typer.Option("--discover", help="Let devices of the local network find this coordinator by multicast.")
]
Each = Annotated[bool, typer.Option("--token-each", help="A token of its own for each device, good for no other.")]
Hours = Annotated[float, typer.Option("--token-hours", min=0.01, help="How long the join token holds.")]


class _Tokens(NamedTuple):
    """What kind of tokens devices get."""

    hours: float
    each: bool = False

    def of(self, gate: Gate, name: str) -> str:
        return gate.token(datetime.now(UTC) + timedelta(hours=self.hours), [name] if self.each else None)


def serve(
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
    """Lead a live run: print how devices join, wait for them, train."""
    with Stopping() as stopping, progress(quiet or as_json, stopping) as shown:
        from potluck.run.keeper import Keeper

        wanted, folder = _wanted(job, settings, seed, out, data)
        locator = _locator(listen, certs, insecure)
        watch = Remembering(shown)
        keeper = Keeper.fresh(wanted, folder, watch, stopping)
        tokens = _Tokens(token_hours, token_each)
        result = _led(wanted, keeper, locator, certs, data, wait, tokens, watch.gather, discover, shared_memory)
    end(result, watch, as_json, quiet)


def lab(
    job: JobFile,
    settings: Sets = None,
    out: Out = None,
    data: Data = None,
    seed: Seed = None,
    wait: Wait = 120.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """The live run on this machine alone: a process per device, slowed and shaped as the fleet file says."""
    with Stopping() as stopping, progress(quiet or as_json, stopping) as shown:
        from potluck.run.keeper import Keeper

        wanted, folder = _wanted(job, settings, seed, out, data)
        watch = Remembering(shown)
        keeper = Keeper.fresh(wanted, folder, watch, stopping)
        result = lab_run(keeper, data, wait, watch.gather)
    end(result, watch, as_json, quiet)


def lab_run(keeper: Keeper, data: Path | None, wait: float, gather: Gather = lambda muster: None) -> Result:
    """Serve, with every device of the fleet as a process here."""
    from potluck.run import set_up
    from potluck.run.lab import Crew, free_address, talks
    from potluck.run.live import Door, serve
    from potluck.worlds.live.session import Place

    job, address = keeper.job, free_address()
    gate = _gate(keeper, None)
    log_to_stderr(logging.WARNING)
    with _noted(keeper, address, None, gather, lab=True) as told:
        setup = set_up(job, None, data, elsewhere=keeper.tensors is not None)
        with Crew(job, address, gate, data) as crew:
            place = Place(listen=(address,), lease=float(job.fleet.lease), direct=talks(job))
            door = Door(place, gate, wait, act_out=True, here=told, listening=partial(told, {}), begun=crew.follow)
            return serve(setup, keeper, door)


def resume_live(keeper: Keeper, ticket: Ticket, data: Path | None, gather: Gather) -> Result:
    """Take a live run up at the address where its devices look for it; a lab starts its devices anew."""
    if ticket.lab:
        return lab_run(keeper, data, 60.0, gather)
    certs = Path(ticket.certs) if ticket.certs else None
    return _led(keeper.job, keeper, ticket.listen, certs, data, 60.0, _Tokens(24.0), gather)


def _led(
    job: Job,
    keeper: Keeper,
    locator: str,
    certs: Path | None,
    data: Path | None,
    wait: float,
    tokens: _Tokens,
    gather: Gather,
    discover: bool = False,
    shared_memory: bool = False,
) -> Result:
    from potluck.run import set_up
    from potluck.run.lab import talks
    from potluck.run.live import Door, serve
    from potluck.worlds.live.security.certs import Tls
    from potluck.worlds.live.session import Place

    gate = _gate(keeper, certs)
    tls = Tls.of(certs / "coordinator") if certs is not None else None
    if tls is not None:
        tls.check()
    lease = float(job.fleet.lease)
    place = Place(
        listen=(locator,), tls=tls, access=gate.access(), lease=lease, direct=talks(job), discover=discover,
        shared_memory=shared_memory,
    )  # fmt: skip
    log_to_stderr(logging.WARNING)
    how = _how_to_join(gate, locator, certs)
    with _noted(keeper, locator, certs, gather, how) as told:
        setup = set_up(job, None, data, elsewhere=keeper.tensors is not None)

        def listening() -> None:
            _say_how_to_join(gate, locator, how, tokens)
            told({})

        door: Door = Door(place, gate, wait, here=told, listening=listening)
        return serve(setup, keeper, door)


def _wanted(
    job: Path, settings: list[str] | None, seed: int | None, out: Path | None, data: Path | None
) -> tuple[Job, Path]:
    from potluck.job import load
    from potluck.run import settled

    find_own_code()
    wanted = load(job_path(job), [*(settings or []), *([f"seed={seed}"] if seed is not None else [])])
    if wanted.timing_only:
        raise UserError("a live run does the mathematics; `timing_only` is for `potluck run`")
    return settled(wanted, data), claimed(out or Path("runs") / fresh_name(wanted.recipe))


def _gate(keeper: Keeper, certs: Path | None) -> Gate:
    """Tokens are for this run, not for its job as it is now: they go on to hold when it is resumed with changes."""
    from potluck.worlds.live.security.gate import Gate

    assert keeper.folder is not None
    names = [device.name for device in keeper.job.fleet.members]
    return Gate.open(keeper.folder, keeper.folder.name, names, certs)


def _locator(listen: str, certs: Path | None, insecure: bool) -> str:
    """Where to listen; beyond this machine only with TLS, unless that is waived."""
    from potluck.worlds.live.security.certs import needs_tls

    address = listen or ("0.0.0.0:7447" if certs is not None or insecure else "127.0.0.1:7447")
    if ":" not in address:
        address += ":7447"
    locator = f"{'tls' if certs is not None else 'tcp'}/{address}"
    if needs_tls(locator) and certs is None and not insecure:
        raise UserError(
            f"{address} is open to other machines, which needs certificates: make them with `potluck certs init`"
            " and give --certs, or --insecure if you trust everyone on this network"
        )
    return locator


def _how_to_join(gate: Gate, locator: str, certs: Path | None) -> dict[str, str]:
    """The command for each device, without its token."""
    from potluck.worlds.live.security.here import address

    protocol, _, where = locator.partition("/")
    host, _, port = where.rpartition(":")
    host = (address() or "127.0.0.1") if host in ("0.0.0.0", "[::]") else host
    option = "--certs" if certs is not None else "--name"
    return {name: f"potluck join {protocol}/{host}:{port} {option} {name}" for name in sorted(gate.admitted)}


def _say_how_to_join(gate: Gate, locator: str, how: Mapping[str, str], tokens: _Tokens) -> None:
    typer.echo(f"listening on {locator}; on each device, within {tokens.hours:g} h:", err=True)
    for name, command in how.items():
        typer.echo(f"  {command} --token {tokens.of(gate, name)}", err=True)
    if locator.startswith("tcp/127.0.0.1:"):
        typer.echo(
            "only processes of this machine can join; for other machines make certificates (`potluck certs init`) and"
            " give --certs FOLDER, or --insecure if you trust everyone on this network",
            err=True,
        )


@contextlib.contextmanager
def _noted(
    keeper: Keeper, locator: str, certs: Path | None, gather: Gather, how: Mapping[str, str] = {}, *, lab: bool = False
) -> Iterator[Callable[[Mapping[str, int]], None]]:
    """Keep the note in the run's folder up to date, and say who is missing until all have come."""
    from potluck.run import ticket as tickets

    assert keeper.folder is not None
    folder = keeper.folder
    ticket = tickets.Ticket.mine(locator, certs)
    ticket.lab = lab
    names = {device.name for device in keeper.job.fleet.members}
    met: set[str] = set()

    def told(here: Mapping[str, int]) -> None:
        ticket.here, ticket.missing = dict(here), sorted(names - here.keys())
        tickets.write(folder, ticket)
        if not met >= names:
            met.update(here)
            gather(Muster(keeper.job.fleet, dict(here), how))

    tickets.write(folder, ticket)
    try:
        yield told
        ticket.ended = "the run is over"
    except BaseException as error:
        ticket.ended = f"{type(error).__name__}: {error}"
        raise
    finally:
        tickets.write(folder, ticket)
