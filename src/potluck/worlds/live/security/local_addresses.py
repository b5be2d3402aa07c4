"""How others call this machine: its name and its address, as far as it knows them itself."""

from __future__ import annotations

import socket

from potluck.worlds.live.security.certificate_signing import mdns_host_names

__all__ = ["local_address", "local_host_names"]

_ANYWHERE = ("192.0.2.1", 9)  # an address of nobody; a datagram socket only looks up the way to it, nothing is sent


def local_host_names() -> tuple[str, ...]:
    """The address on the way out, the host's name, and that name for neighbours (`.local`)."""
    name = socket.gethostname().partition(".")[0]
    return tuple(one for one in (local_address(), *mdns_host_names(name)) if one)


def local_address() -> str | None:
    """The address by which neighbours reach this machine; None without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(_ANYWHERE)
        except OSError:
            return None
        return str(way.getsockname()[0])
