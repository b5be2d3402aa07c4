"""Finds sockets of this process that Zenoh has opened, to set an option or to shut a connection down.

Zenoh cannot close a single connection. Its sockets are this process's, too, and shutting one down is what it would see
if the network broke: it closes the link and goes on.
"""

from __future__ import annotations

import os
import socket

__all__ = ["find_listener", "shut_connection"]

_DESCRIPTORS = "/dev/fd"


def find_listener(port: int) -> socket.socket | None:
    """A duplicate of the socket that listens on a TCP port."""
    return _find_socket(port, None)


def shut_connection(local: str, peer: str) -> bool:
    """Shut down the TCP connection between two locators (tls/HOST:PORT); False if this process does not have it."""
    _, port = _parse_locator(local)
    connection = _find_socket(port, _parse_locator(peer))
    if connection is None:
        return False
    with connection:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True


def _find_socket(port: int, peer: tuple[str, int] | None) -> socket.socket | None:
    """The socket at a local port that listens, or that is connected to `peer`."""
    for entry in os.listdir(_DESCRIPTORS):
        try:
            candidate = socket.socket(fileno=os.dup(int(entry)))
        except OSError:
            continue  # not a socket, or closed meanwhile
        if _matches(candidate, port, peer):
            return candidate
        candidate.close()
    return None


def _matches(candidate: socket.socket, port: int, peer: tuple[str, int] | None) -> bool:
    try:
        if candidate.family not in (socket.AF_INET, socket.AF_INET6) or candidate.type != socket.SOCK_STREAM:
            return False
        if candidate.getsockname()[1] != port:
            return False
        if candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return peer is None
        host, peer_port = candidate.getpeername()[:2]
    except OSError:
        return False  # closed meanwhile
    return (host.removeprefix("::ffff:"), peer_port) == peer


def _parse_locator(locator: str) -> tuple[str, int]:
    address = locator.partition("/")[2].partition("?")[0].partition("#")[0]
    host, _, port = address.rpartition(":")
    return host.strip("[]").removeprefix("::ffff:"), int(port)
