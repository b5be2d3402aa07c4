"""`potluck join`: make this machine a device of a live run."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.command_options import Data, SharedMemory
from potluck.cli.console import log_to_stderr
from potluck.cli.run_command import add_cwd_to_path
from potluck.errors import UserError

if TYPE_CHECKING:
    from potluck.worlds.live.security.tls_credentials import TlsCredentials

__all__ = ["join_command"]

Address = Annotated[
    str,
    typer.Argument(
        metavar="ADDRESS", help="The coordinator's address, as printed by `potluck serve`: tls/192.168.1.5:7447"
    ),
]
Discover = Annotated[
    bool, typer.Option("--discover", help="Find the coordinator (`potluck serve --discover`) on the local network.")
]
Token = Annotated[
    str, typer.Option("--token", envvar="POTLUCK_TOKEN", help="The join token, as printed by `potluck serve`.")
]
Name = Annotated[str, typer.Option("--name", help="This device's name in the fleet (default: the certificate's).")]
Certs = Annotated[
    Path | None, typer.Option("--certs", help="This device's folder from `potluck certs issue`, for tls/ addresses.")
]
Listen = Annotated[
    str,
    typer.Option(
        "--listen",
        metavar="HOST[:PORT]",
        help="Accept direct connections from other devices at this address (default port 7448);"
        " without it, all traffic goes through the coordinator.",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Exit when the run ends instead of waiting for the next one.")]
Cores = Annotated[int, typer.Option("--threads", min=0, help="CPU cores to use (0: $OMP_NUM_THREADS, or all).")]
Memory = Annotated[str, typer.Option("--memory", help="Limit the memory of this process, such as '2 GB'.")]
Throttle = Annotated[
    float, typer.Option("--throttle", min=0.001, max=1.0, help="Use only this fraction of the machine's speed.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more details.")]

PORT, OWN_PORT = 7447, 7448
_MIN_MEMORY = 300_000_000
_DISCOVERY_TIMEOUT_S = 60.0  # with --once
_ADDRESS = re.compile(r"(?:(?P<protocol>\w+)/)?(?P<host>\[[0-9a-fA-F:.%\w]+\]|[\w.-]+)(?::(?P<port>\d{1,5}))?")


def join_command(
    address: Address = "",
    token: Token = "",
    name: Name = "",
    certs: Certs = None,
    discover: Discover = False,
    listen: Listen = "",
    once: Once = False,
    threads: Cores = 0,
    memory: Memory = "",
    throttle: Throttle = 1.0,
    shared_memory: SharedMemory = False,
    data: Data = None,
    verbose: Verbose = False,
) -> None:
    """Join a live run as a device. Reconnects when the connection is lost."""
    log_to_stderr(logging.DEBUG if verbose else logging.INFO)
    if bool(address) == discover:
        raise UserError("give either the coordinator's ADDRESS, as printed by `potluck serve`, or --discover")
    add_cwd_to_path()
    memory_bytes = _limit_memory(memory)
    from potluck.run.live_run import JoinOptions
    from potluck.run.live_run import join_run as take_part
    from potluck.worlds.live.zenoh_session import Endpoint

    protocol, tls, name = _resolve_identity(address, certs, name)
    own = (_listen_locator(listen, tls),) if listen else ()
    if not token:
        raise UserError("this run requires a join token; pass --token (printed by `potluck serve`)")
    connect = (_discover_coordinator(protocol, once) if discover else _coordinator_locator(address, protocol),)
    place = Endpoint(connect=connect, listen=own, direct=bool(own), tls=tls, shared_memory=shared_memory)
    seat = JoinOptions(
        place, name, token, once=once, threads=_thread_count(threads), throttle=throttle,
        memory_bytes=memory_bytes, data=data,
    )  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    typer.echo(f"{name}: joining {place.connect[0]}", err=True)
    typer.echo(f"{name}: {take_part(seat)}", err=True)


def _coordinator_locator(address: str, protocol: str) -> str:
    """Where to connect; the default port is the one that `potluck serve` listens on."""
    match = _match_address(address, protocol)
    if match is None:
        raise UserError(f"{address!r} is not a valid address; it should look like {protocol}/192.168.1.5:{PORT}")
    return f"{protocol}/{match['host']}:{match['port'] or PORT}"


def _match_address(address: str, protocol: str) -> re.Match[str] | None:
    match = _ADDRESS.fullmatch(address)
    if match is None or match["protocol"] not in (None, protocol) or int(match["port"] or 1) > 65535:
        return None
    return match


def _discover_coordinator(protocol: str, once: bool) -> str:
    from potluck.worlds.live.coordinator_discovery import find_coordinator

    return find_coordinator(protocol, _DISCOVERY_TIMEOUT_S if once else None)


def _thread_count(wanted: int) -> int:
    """The option, else the environment variable as PyTorch reads it, else all cores."""
    variable = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return wanted or (int(variable) if variable.isdecimal() else 0) or os.cpu_count() or 1


def _listen_locator(listen: str, tls: TlsCredentials | None) -> str:
    """Where other devices connect to this one; on any address but loopback it needs a certificate."""
    from potluck.worlds.live.security.tls_credentials import needs_tls

    protocol = "tcp" if tls is None else "tls"
    match = _match_address(listen, protocol)
    if match is None:
        raise UserError(f"--listen {listen}: not a valid address; it should look like 192.168.1.11:{OWN_PORT}")
    host, port = match["host"], int(match["port"] or OWN_PORT)
    locator = f"{protocol}/{host}:{port}"
    if tls is None and needs_tls(locator):
        raise UserError(
            f"--listen {listen} can be reached by other machines, which needs a certificate: pass --certs FOLDER"
        )
    if tls is not None and host.strip("[]") not in (*tls.certified_hosts(), "0.0.0.0", "::"):
        raise UserError(
            f"the certificate is not valid for {host}, so no device would connect there; issue one with"
            f" `potluck certs issue {tls.check_files()} --host {host}` and copy its folder to this device"
        )
    _check_can_listen(listen, host, port)
    return locator


def _check_can_listen(listen: str, host: str, port: int) -> None:
    """Check now: Zenoh would report it only after the device has joined."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise UserError(
            f"--listen {listen}: cannot listen there ({error.strerror}); choose an address of this machine"
            " and a free port"
        ) from None


def _resolve_identity(address: str, certs: Path | None, name: str) -> tuple[str, TlsCredentials | None, str]:
    """The protocol, the credentials and the device's name, which must be consistent."""
    from potluck.worlds.live.security.tls_credentials import TlsCredentials

    if certs is None:
        if address.startswith("tls/"):
            raise UserError(
                f"{address} needs a certificate: pass --certs FOLDER (created by `potluck certs issue NAME`)"
            )
        return "tcp", None, name or socket.gethostname().partition(".")[0]
    tls = TlsCredentials.from_bundle(certs)
    certified = tls.check_files()
    if name and name != certified:
        raise UserError(f"the certificate in {certs} is for {certified!r}, not {name!r}; leave out --name")
    return "tls", tls, certified


def _limit_memory(text: str) -> int:
    """Limit the memory of this process; returns the limit in bytes, or 0 for none."""
    if not text:
        return 0
    from potluck.units import Bytes

    try:
        limit = int(Bytes.parse(text))
    except (ValueError, OverflowError) as error:
        raise UserError(f"--memory {text}: {error}") from None
    if limit < _MIN_MEMORY:
        raise UserError(f"--memory {text}: PyTorch does not load in less than {Bytes(_MIN_MEMORY)}")
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    except (ImportError, ValueError, OSError) as error:
        raise UserError(f"--memory {text}: this system refuses the limit ({error})") from None
    return limit
