"""The names and the address by which others on the network reach this machine."""

from __future__ import annotations

import socket

from potluck.worlds.live.security.certificate_signing import mdns_host_names

__all__ = ["local_address", "local_host_names"]

_UNROUTED = ("192.0.2.1", 9)  # TEST-NET: connecting a datagram socket only looks up a route, nothing is sent


def local_host_names() -> tuple[str, ...]:
    """This machine's address, its host name, and its mDNS name (`.local`)."""
    name = socket.gethostname().partition(".")[0]
    return tuple(host for host in (local_address(), *mdns_host_names(name)) if host)


def local_address() -> str | None:
    """The address that the local network reaches this machine by; None without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_UNROUTED)
        except OSError:
            return None
        return str(probe.getsockname()[0])
