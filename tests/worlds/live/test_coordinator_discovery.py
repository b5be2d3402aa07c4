"""A discoverable coordinator is found on a network that carries multicast."""

from __future__ import annotations

import contextlib
import socket

import pytest

from potluck.errors import UserError
from potluck.worlds.live import coordinator_discovery
from potluck.worlds.live.zenoh_session import Endpoint, open_session
from tests.worlds.live.fleet_folder import free_port


def _carries_multicast() -> bool:
    group = socket.inet_aton("224.0.0.224")
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.settimeout(1.0)
        receiver.bind(("", 0))
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group + socket.inet_aton("0.0.0.0"))
        sender.sendto(b"?", ("224.0.0.224", receiver.getsockname()[1]))
        return receiver.recv(1) == b"?"
    return False


@pytest.mark.skipif(not _carries_multicast(), reason="this network carries no multicast")
def test_only_a_discoverable_coordinator_is_found() -> None:
    port = free_port()
    with open_session(Endpoint(listen=(f"tcp/0.0.0.0:{port}",), discover=True), "router"):
        assert coordinator_discovery.find_coordinator("tcp", 10.0).endswith(f":{port}")
        with open_session(Endpoint(listen=(f"tcp/0.0.0.0:{free_port()}",)), "router"):
            assert coordinator_discovery.find_coordinator("tcp", 10.0).endswith(f":{port}")
        with pytest.raises(UserError, match=r"no coordinator found within 0\.1 s"):
            coordinator_discovery.find_coordinator("tls", 0.1)


@pytest.mark.skipif(not _carries_multicast(), reason="this network carries no multicast")
def test_several_coordinators_are_an_error() -> None:
    ports = [free_port(), free_port()]
    endpoints = [Endpoint(listen=(f"tcp/0.0.0.0:{port}",), discover=True) for port in ports]
    with (
        open_session(endpoints[0], "router"),
        open_session(endpoints[1], "router"),
        pytest.raises(UserError, match=rf"several coordinators.*(:{ports[0]}.*:{ports[1]}|:{ports[1]}.*:{ports[0]})"),
    ):
        coordinator_discovery.find_coordinator("tcp", 10.0)
