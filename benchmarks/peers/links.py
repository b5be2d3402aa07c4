"""Machines on one switch, each behind a link of its own rate: network namespaces of Linux, shaped by `tc tbf`.

    machine 0 ──eth0──┐
    machine 1 ──eth0──┤ bridge        both ends of each cable are shaped, so `up` and `down` have the rate each
    machine 2 ──eth0──┘

Needs root; `problem()` says in one line what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType

__all__ = ["Town", "problem"]

_BURST = "64kb"
_QUEUE = "100ms"


def problem() -> str | None:
    """Why links cannot be shaped here; None if they can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"shaped links need {' and '.join(missing)}: install iproute2"
    if os.geteuid() != 0:
        return "shaped links need root, for network namespaces and tc: run it with sudo"
    tried = _call("ip", "netns", "add", _hub(), check=False)
    if tried.returncode:
        return f"network namespaces are refused here ({tried.stderr.strip()}): run it on a plain Linux machine"
    _call("ip", "netns", "del", _hub())
    return None


class Town:
    """As a context: the machines are there, and gone at the end."""

    def __init__(self, rates: Sequence[str]) -> None:
        """The rate of each machine's link, as `tc` writes it: `100mbit`."""
        self._rates = rates

    def __enter__(self) -> Town:
        _call("ip", "netns", "add", _hub())
        _call("ip", "-n", _hub(), "link", "add", "name", "switch", "type", "bridge")
        _call("ip", "-n", _hub(), "link", "set", "switch", "up")
        for number, rate in enumerate(self._rates):
            self._connect(number, rate)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in range(len(self._rates)):
            _call("ip", "netns", "del", _machine(number), check=False)
        _call("ip", "netns", "del", _hub(), check=False)

    @staticmethod
    def address(number: int) -> str:
        return f"10.77.0.{number + 1}"

    @staticmethod
    def on(number: int, command: Sequence[str]) -> list[str]:
        """The command that does it on that machine."""
        return ["ip", "netns", "exec", _machine(number), *command]

    def _connect(self, number: int, rate: str) -> None:
        machine, port = _machine(number), f"port{number}"
        _call("ip", "netns", "add", machine)
        _call("ip", "-n", _hub(), "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", machine)
        _call("ip", "-n", _hub(), "link", "set", port, "master", "switch", "up")
        _call("ip", "-n", machine, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _call("ip", "-n", machine, "link", "set", device, "up")
        for place, device in ((machine, "eth0"), (_hub(), port)):
            shape = ["root", "tbf", "rate", rate, "burst", _BURST, "latency", _QUEUE]
            _call("tc", "-n", place, "qdisc", "add", "dev", device, *shape)


def _hub() -> str:
    return f"peers-{os.getpid()}-hub"


def _machine(number: int) -> str:
    return f"peers-{os.getpid()}-{number}"


def _call(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done
