"""Where the nodes of a live run listen and connect: locators for Zenoh from what users write, checked beforehand."""

from __future__ import annotations

import contextlib
import random
import re
import socket
from pathlib import Path
from typing import NamedTuple

from potluck.errors import UserError
from potluck.job import Job
from potluck.text_escaping import name_refusal
from potluck.worlds.live.security.tls_credentials import TlsCredentials, needs_tls

__all__ = [
    "DeviceIdentity",
    "coordinator_locator",
    "device_identity",
    "device_listen_locator",
    "free_loopback_address",
    "listen_locator",
    "uses_direct_links",
]

PORT, DEVICE_PORT = 7447, 7448
_LISTENING_PORTS, _PORT_TRIALS = range(20_000, 32_768), 20  # below those of outgoing connections
_ADDRESS = re.compile(r"(?:(?P<protocol>\w+)/)?(?P<host>\[[0-9a-fA-F:.%\w]+\]|[\w.-]+)(?::(?P<port>\d{1,5}))?")


class DeviceIdentity(NamedTuple):
    """A device's name, and what proves it."""

    name: str
    tls: TlsCredentials | None

    @property
    def protocol(self) -> str:
        return "tcp" if self.tls is None else "tls"


def free_loopback_address() -> str:
    """A loopback address that is not in use.

    Its port is below those that systems choose for outgoing connections, so that none of these takes it before the
    coordinator listens there.
    """
    for port in random.SystemRandom().sample(_LISTENING_PORTS, _PORT_TRIALS):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return f"tcp/127.0.0.1:{port}"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp/127.0.0.1:{probe.getsockname()[1]}"


def uses_direct_links(job: Job) -> bool:
    """Whether devices send each other messages."""
    return job.pipeline is not None or (job.stream is not None and job.stream.injection is not None)


def listen_locator(listen: str, certs: Path | None, insecure: bool) -> str:
    """Where the coordinator listens; beyond this machine only with TLS, unless `insecure` waives that."""
    address = listen or (f"0.0.0.0:{PORT}" if certs is not None or insecure else f"127.0.0.1:{PORT}")
    if ":" not in address:
        address += f":{PORT}"
    locator = f"{'tls' if certs is not None else 'tcp'}/{address}"
    if needs_tls(locator) and certs is None and not insecure:
        raise UserError(
            f"{address} can be reached by other machines, which needs certificates: create them with"
            " `potluck certs init` and pass --certs, or --insecure if you trust everyone on this network"
        )
    return locator


def coordinator_locator(address: str, protocol: str) -> str:
    """Where a device connects; without a port, the one that `potluck serve` listens on."""
    match = _match_address(address, protocol)
    if match is None:
        raise UserError(f"{address!r} is not a valid address; it should look like {protocol}/192.168.1.5:{PORT}")
    return f"{protocol}/{match['host']}:{match['port'] or PORT}"


def _match_address(address: str, protocol: str) -> re.Match[str] | None:
    match = _ADDRESS.fullmatch(address)
    if match is None or match["protocol"] not in (None, protocol) or int(match["port"] or 1) > 65535:
        return None
    return match


def device_identity(address: str, certs: Path | None, name: str) -> DeviceIdentity:
    """A device's name and certificate, which must agree with each other and with the coordinator's address."""
    if certs is None:
        if address.startswith("tls/"):
            raise UserError(
                f"{address} needs a certificate: pass --certs FOLDER (created by `potluck certs issue NAME`)"
            )
        name = name or socket.gethostname().partition(".")[0]
        if (reason := name_refusal(name)) is not None:
            raise UserError(f"--name: {reason}")
        return DeviceIdentity(name, None)
    tls = TlsCredentials.from_bundle(certs)
    certified = tls.check_files()
    if name and name != certified:
        raise UserError(f"the certificate in {certs} is for {certified!r}, not {name!r}; leave out --name")
    return DeviceIdentity(certified, tls)


def device_listen_locator(listen: str, identity: DeviceIdentity) -> str:
    """Where other devices reach this one: beyond this machine only with a certificate for that address."""
    protocol, tls = identity.protocol, identity.tls
    match = _match_address(listen, protocol)
    if match is None:
        raise UserError(f"--listen {listen}: not a valid address; it should look like 192.168.1.11:{DEVICE_PORT}")
    host, port = match["host"], int(match["port"] or DEVICE_PORT)
    locator = f"{protocol}/{host}:{port}"
    if tls is None and needs_tls(locator):
        raise UserError(
            f"--listen {listen} can be reached by other machines, which needs a certificate: pass --certs FOLDER"
        )
    if tls is not None and host.strip("[]") not in (*tls.certified_hosts(), "0.0.0.0", "::"):
        raise UserError(
            f"the certificate is not valid for {host}, so no device would connect there; issue one with"
            f" `potluck certs issue {identity.name} --host {host}` and copy its folder to this device"
        )
    _check_can_listen(listen, host, port)
    return locator


def _check_can_listen(listen: str, host: str, port: int) -> None:
    """Before joining, since Zenoh would report it only once the device is admitted."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise UserError(
            f"--listen {listen}: cannot listen there ({error.strerror}); choose an address of this machine and a free"
            " port"
        ) from None
