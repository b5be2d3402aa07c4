"""Opens connections that are no device's, as a process: `python stray_connections.py HOST PORT KIND PER_S SOURCE`.

KIND is `random` (64 bytes, then closed), `hello` (a TLS ClientHello, then silence), `hello-close` (the same, closed
after 50 ms), `init` (Zenoh's first message, then silence) or `silence`. It goes on until it is ended.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["KINDS", "stray_connections"]

KINDS = ("random", "hello", "hello-close", "init", "silence")
_CLOSE_AFTER_S = {"random": 0.05, "hello-close": 0.05}
_LONGEST_S = 20.0


@contextlib.contextmanager
def stray_connections(port: int, kind: str, per_s: float, source: str = "127.0.0.1") -> Iterator[None]:
    """Open so many connections a second to a port of this machine, from `source`, while the context is entered."""
    words = [sys.executable, str(Path(__file__)), "127.0.0.1", str(port), kind, str(per_s), source]
    process = subprocess.Popen(words)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _open_for_ever(address: tuple[str, int], kind: str, per_s: float, source: str) -> None:
    first_bytes = _first_bytes(kind)
    waiting: list[tuple[socket.socket, float, bool]] = []
    started, opened = time.monotonic(), 0
    while True:
        now = time.monotonic()
        while opened < (now - started) * per_s:
            opened += 1
            connection = socket.socket()
            connection.setblocking(False)
            connection.bind((source, 0))
            connection.connect_ex(address)
            waiting.append((connection, now, not first_bytes))
        waiting = [kept for entry in waiting if (kept := _advance(entry, kind, first_bytes)) is not None]
        time.sleep(0.004)


def _advance(
    entry: tuple[socket.socket, float, bool], kind: str, first_bytes: bytes
) -> tuple[socket.socket, float, bool] | None:
    """Send what is still to be sent; None once the connection is closed."""
    connection, opened_at, sent = entry
    try:
        if not sent:
            connection.send(first_bytes)
            return connection, opened_at, True
        if time.monotonic() - opened_at < _CLOSE_AFTER_S.get(kind, _LONGEST_S) and connection.recv(1 << 16):
            return entry
    except BlockingIOError:
        return entry
    except OSError:
        pass
    connection.close()
    return None


def _first_bytes(kind: str) -> bytes:
    match kind:
        case "random":
            return os.urandom(64)
        case "silence":
            return b""
        case "init":
            zenoh_id = os.urandom(16)
            return bytes.fromhex("2000c109f2") + zenoh_id + bytes.fromhex("0ac8ff81c205bbdcc1b3042701")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    to_read, written = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(to_read, written, server_hostname="coordinator").do_handshake()
    return written.read()


if __name__ == "__main__":
    _limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (_limit, _limit))
    _host, _port, _kind, _per_s, _source = sys.argv[1:]
    _open_for_ever((_host, int(_port)), _kind, float(_per_s), _source)
