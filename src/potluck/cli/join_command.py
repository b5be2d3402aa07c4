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
    str, typer.Argument(metavar="[ADDRESS]", help="As `potluck serve` printed it: tls/192.168.1.5:7447")
]
Discover = Annotated[
    bool, typer.Option("--discover", help="Find the coordinator (`potluck serve --discover`) on the local network.")
]
Token = Annotated[str, typer.Option("--token", envvar="POTLUCK_TOKEN", help="What `potluck serve` printed.")]
Name = Annotated[str, typer.Option("--name", help="This device's name in the fleet (default: the certificate's).")]
Certs = Annotated[
    Path | None, typer.Option("--certs", help="This device's folder from `potluck certs issue`, for tls/ addresses.")
]
Listen = Annotated[
    str,
    typer.Option(
        "--listen",
        metavar="HOST[:PORT]",
        help="This device's own address, by which others of the run reach it directly (port 7448); else all goes"
        " through the coordinator.",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="End with the run instead of waiting for the next.")]
Cores = Annotated[
    int, typer.Option("--threads", min=0, help="Processor cores to compute on (0: $OMP_NUM_THREADS, else all).")
]
Memory = Annotated[str, typer.Option("--memory", help="The most memory this process may take, such as 2GB.")]
Throttle = Annotated[
    float, typer.Option("--throttle", min=0.001, max=1.0, help="Act slower: the share of this machine's speed to use.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")]

PORT, OWN_PORT = 7447, 7448
_PATIENCE_S = 60.0  # to look for a coordinator, with --once
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
    """Take part in the run of a coordinator; comes back by itself when the connection breaks."""
    log_to_stderr(logging.DEBUG if verbose else logging.INFO)
    if bool(address) == discover:
        raise UserError(
            "say where the coordinator is: either its ADDRESS, as `potluck serve` printed it, or --discover"
        )
    add_cwd_to_path()
    memory_bytes = _limit_memory(memory)
    from potluck.run.live_run import JoinOptions
    from potluck.run.live_run import join_run as take_part
    from potluck.worlds.live.zenoh_session import Endpoint

    protocol, tls, name = _resolve_identity(address, certs, name)
    own = (_listen_locator(listen, tls),) if listen else ()
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
    """Where to connect; without a port, the one that `potluck serve` listens on."""
    found = _ADDRESS.fullmatch(address)
    if found is None or found["protocol"] not in (None, protocol) or int(found["port"] or 1) > 65535:
        raise UserError(f"{address!r} is no address to join; it looks like {protocol}/192.168.1.5:7447")
    return f"{protocol}/{found['host']}:{found['port'] or PORT}"


def _discover_coordinator(protocol: str, once: bool) -> str:
    from potluck.worlds.live.coordinator_discovery import find_coordinator

    return find_coordinator(protocol, _PATIENCE_S if once else None)


def _thread_count(wanted: int) -> int:
    """What was asked for, what the environment says as PyTorch reads it, or all."""
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return wanted or (int(said) if said.isdecimal() else 0) or os.cpu_count() or 1


def _listen_locator(listen: str, tls: TlsCredentials | None) -> str:
    """Where others may call this device: an address of its own, beyond this machine only with a certificate for it."""
    from potluck.worlds.live.security.tls_credentials import needs_tls

    protocol = "tcp" if tls is None else "tls"
    found = _ADDRESS.fullmatch(listen)
    if found is None or found["protocol"] not in (None, protocol) or int(found["port"] or 1) > 65535:
        raise UserError(f"--listen {listen}: no address to listen on; it looks like 192.168.1.11:{OWN_PORT}")
    host, port = found["host"], int(found["port"] or OWN_PORT)
    locator = f"{protocol}/{host}:{port}"
    if tls is None and needs_tls(locator):
        raise UserError(f"--listen {listen} is open to other machines, which needs a certificate: give --certs FOLDER")
    if tls is not None and host.strip("[]") not in (*tls.certified_hosts(), "0.0.0.0", "::"):
        raise UserError(
            f"the certificate is not for {host}, so nobody would call it there; issue one with"
            f" `potluck certs issue {tls.check_files()} --host {host}` and copy the bundle"
        )
    _check_can_listen(listen, host, port)
    return locator


def _check_can_listen(listen: str, host: str, port: int) -> None:
    """Now, since Zenoh would only say so when the run lets us in."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise UserError(
            f"--listen {listen}: this machine cannot listen there ({error.strerror}); give an address of its own"
            " and a free port"
        ) from None


def _resolve_identity(address: str, certs: Path | None, name: str) -> tuple[str, TlsCredentials | None, str]:
    """The protocol, the certificate and the name, which must fit each other."""
    from potluck.worlds.live.security.tls_credentials import TlsCredentials

    if certs is None:
        if address.startswith("tls/"):
            raise UserError(f"{address} needs a certificate: give --certs FOLDER (made by `potluck certs issue NAME`)")
        return "tcp", None, name or socket.gethostname().partition(".")[0]
    tls = TlsCredentials.from_bundle(certs)
    certified = tls.check_files()
    if name and name != certified:
        raise UserError(f"the certificate in {certs} is for {certified!r}, not {name!r}; leave --name out")
    return "tls", tls, certified


def _limit_memory(words: str) -> int:
    if not words:
        return 0
    from potluck.units import Bytes

    try:
        limit = int(Bytes.parse(words))
    except (ValueError, OverflowError) as error:
        raise UserError(f"--memory {words}: {error}") from None
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    except (ImportError, ValueError, OSError) as error:
        raise UserError(f"--memory {words}: this system does not take the limit ({error})") from None
    return limit
