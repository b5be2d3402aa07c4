"""`potluck ui`: a local web page that lists runs and follows them while they run."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from potluck.errors import UserError

__all__ = ["ui_command"]

Root = Annotated[Path, typer.Argument(metavar="RUNS", help="A folder of runs, or one run.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="The port to listen on (0: any free one).")]
Host = Annotated[
    str, typer.Option("--host", help="The address to listen on; on any but loopback, others can read the runs.")
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the web browser.")]


def ui_command(runs: Root = Path("runs"), port: Port = 8765, host: Host = "127.0.0.1", show: Open = False) -> None:
    """Follow runs in the web browser. Ctrl-C ends the page, not the runs."""
    try:
        from potluck.report.report_server import create_server, is_loopback
    except ImportError as error:
        raise UserError(f"the page needs {error.name}; install it with: pip install 'potluck[ui]'") from None
    if not runs.is_dir():
        raise UserError(
            f"there is no folder {runs}; name a folder of runs, such as `runs`, where `potluck run` puts them"
        )
    listening = _open_socket(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/"
    typer.echo(f"following {runs} at {address} (Ctrl-C to end)")
    if not is_loopback(host):
        typer.echo("anyone who can reach this address can read the runs", err=True)
    if show:
        typer.launch(address)
    _lower_priority()
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        create_server(runs, host).run(sockets=[listening])


def _open_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port or --host") from None
    return listening


def _lower_priority() -> None:
    """The page must not slow down runs on the same machine."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
