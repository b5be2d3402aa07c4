"""`potluck join`: make this machine a device of a live run."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli.command_options import Data, SharedMemory
from potluck.cli.console import log_to_stderr
from potluck.cli.run_command import add_cwd_to_path
from potluck.errors import UserError

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

_MIN_MEMORY = 300_000_000


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
    from potluck.run.joined_device import JoinOptions, join

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    options = JoinOptions(
        certs=certs, listen=listen, once=once, threads=threads, throttle=throttle, memory_bytes=memory_bytes,
        shared_memory=shared_memory,
    )  # fmt: skip
    typer.echo(join(address, token, name=name, data=data, options=options), err=True)


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
