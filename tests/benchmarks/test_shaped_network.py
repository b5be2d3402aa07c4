"""Machines behind links that the kernel shapes; needs root and iproute2."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.shaped_network import ShapedNetwork, missing_requirement
from tests.cli.calling import ROOT

needs_network = pytest.mark.skipif(missing_requirement() is not None, reason=str(missing_requirement()))

_RECEIVE = """
import socket, sys
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE: room for all, however late this process runs
receiver.bind(("0.0.0.0", 5000)); receiver.settimeout(3.0)
print("ready", flush=True)
count = 0
try:
    while receiver.recv(2000) != b"end": count += 1; receiver.settimeout(1.0)
except TimeoutError: pass
print(count)
"""
_SEND = """
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(1000):
    sender.sendto(bytes(200), (sys.argv[1], 5000))
    if number % 50 == 0: time.sleep(0.001)
"""


def _received(network: ShapedNetwork) -> int:
    """How many of 1,000 datagrams from machine 0 arrive at machine 1."""
    receiver = subprocess.Popen(
        network.command_on(1, [sys.executable, "-c", _RECEIVE]), stdout=subprocess.PIPE, text=True
    )
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "ready\n"
    subprocess.run(network.command_on(0, [sys.executable, "-c", _SEND, network.address(1)]), check=True)
    return int(receiver.communicate(timeout=30)[0])


@needs_network
def test_packets_are_dropped_and_links_cut_and_restored() -> None:
    with ShapedNetwork(["", ""]) as network:
        assert _received(network) == 1000  # now the addresses are known: a dropped ARP request would hold up the rest
        network.drop_packets(1, 0.2)
        assert 650 < _received(network) < 950
        network.drop_packets(1, 0.0)
        assert _received(network) == 1000
        network.cut_link(1)
        assert _received(network) == 0
        network.restore_link(1)
        time.sleep(0.2)
        assert _received(network) > 900


_LINGERING = """
import subprocess, sys, time
from benchmarks.shaped_network import ShapedNetwork
with ShapedNetwork(["10mbit"]) as network:
    process = subprocess.Popen(network.command_on(0, ["sleep", "60"]), start_new_session=True)
    time.sleep(0.3)
    print(process.pid, flush=True)
    time.sleep(60)
"""


@needs_network
def test_nothing_is_left_after_a_kill() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", _LINGERING], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert any(str(parent.pid) in name for name in _namespaces())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 20
    while any(f"potluck-{parent.pid}-" in name for name in _namespaces()) or _is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _namespaces() -> list[str]:
    listed = subprocess.run(["ip", "-json", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [row["name"] for row in json.loads(listed or "[]")]


def _is_running(pid: int) -> bool:
    """A zombie that init has yet to reap does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
