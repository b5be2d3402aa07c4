"""Which address devices are told to join at: one that reaches the coordinator and that its certificate carries.

A device verifies the certificate against the address it was given, so any other address would be refused.
"""

from __future__ import annotations

import ipaddress
import socket

from potluck.errors import UserError
from potluck.worlds.live.security.certificate_signing import local_address
from potluck.worlds.live.security.tls_credentials import TlsCredentials

__all__ = ["choose_join_locator", "is_loopback_address"]

_WILDCARDS = ("0.0.0.0", "::")


def choose_join_locator(locator: str, tls: TlsCredentials | None) -> str:
    """The locator to join at for a coordinator that listens at `locator`; UserError if the certificate has none."""
    protocol, _, where = locator.partition("/")
    listen, _, port = where.rpartition(":")
    host = _choose_address(listen.strip("[]"), tls)
    return f"{protocol}/{f'[{host}]' if ':' in host else host}:{port}"


def _choose_address(listen: str, tls: TlsCredentials | None) -> str:
    certified = None if tls is None else tls.certified_hosts()
    if listen not in _WILDCARDS:
        return listen if certified is None else _certified_name(listen, certified)
    default = local_address() or "127.0.0.1"
    if certified is None or default in certified:
        return default
    usable = [host for host in certified if not (listen == "0.0.0.0" and ":" in host)]
    if not usable:
        raise UserError(_missing_address(default))
    return min(usable, key=_distance)  # the first of the nearest


def _certified_name(listen: str, certified: tuple[str, ...]) -> str:
    """The address itself, or a certified host name that stands for it."""
    if listen in certified:
        return listen
    for host in certified:
        if listen in _resolve_addresses(host):
            return host
    raise UserError(_missing_address(listen))


def _missing_address(host: str) -> str:
    return (
        f"the coordinator's certificate is not valid for {host}, so no device would connect there; issue one with"
        f" `potluck certs issue coordinator --host {host}`"
    )


def _distance(host: str) -> int:
    """How unlikely it is that devices reach this machine at a certified host: best are the machine's own addresses."""
    addresses = _resolve_addresses(host)
    if is_loopback_address(host) or any(map(is_loopback_address, addresses)):
        return 3 if _is_address(host) else 4  # a name may also stand for an address that is not listened on
    if any(map(_is_own_address, addresses)):
        return 0 if _is_address(host) else 1
    return 2  # such as the public address of a router, or a name that only devices can resolve


def is_loopback_address(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _resolve_addresses(host: str) -> set[str]:
    if _is_address(host):
        return {host}
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def _is_own_address(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
