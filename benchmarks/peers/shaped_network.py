"""Emulates machines on one switch, each behind a link of its own rate: Linux network namespaces shaped by `tc tbf`.

    machine 0 ──eth0──┐
    machine 1 ──eth0──┤ bridge        both ends of each link are shaped, so up and down each have the rate
    machine 2 ──eth0──┘

Needs root; `missing_requirement()` says in one line what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType

__all__ = ["ShapedNetwork", "missing_requirement"]

_BURST = "64kb"
_QUEUE = "100ms"


def missing_requirement() -> str | None:
    """Why links cannot be shaped on this machine; None if they can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"shaped links need {' and '.join(missing)}: install iproute2"
    if os.geteuid() != 0:
        return "shaped links need root, for network namespaces and tc: run the command with sudo"
    attempt = _run_command("ip", "netns", "add", _hub(), check=False)
    if attempt.returncode:
        return f"network namespaces are refused ({attempt.stderr.strip()}): run the command outside a container"
    _run_command("ip", "netns", "del", _hub())
    return None


class ShapedNetwork:
    """A context in which the emulated machines exist."""

    def __init__(self, rates: Sequence[str]) -> None:
        """`rates` are those of the machines' links in the notation of `tc`: `100mbit`."""
        self._rates = rates

    def __enter__(self) -> ShapedNetwork:
        _run_command("ip", "netns", "add", _hub())
        _run_command("ip", "-n", _hub(), "link", "add", "name", "switch", "type", "bridge")
        _run_command("ip", "-n", _hub(), "link", "set", "switch", "up")
        for number, rate in enumerate(self._rates):
            self._connect(number, rate)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in range(len(self._rates)):
            _run_command("ip", "netns", "del", _machine(number), check=False)
        _run_command("ip", "netns", "del", _hub(), check=False)

    @staticmethod
    def address(number: int) -> str:
        return f"10.77.0.{number + 1}"

    @staticmethod
    def command_on(number: int, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on that machine."""
        return ["ip", "netns", "exec", _machine(number), *command]

    def _connect(self, number: int, rate: str) -> None:
        machine, port = _machine(number), f"port{number}"
        _run_command("ip", "netns", "add", machine)
        _run_command("ip", "-n", _hub(), "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", machine)
        _run_command("ip", "-n", _hub(), "link", "set", port, "master", "switch", "up")
        _run_command("ip", "-n", machine, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run_command("ip", "-n", machine, "link", "set", device, "up")
        for namespace, device in ((machine, "eth0"), (_hub(), port)):
            shape = ["root", "tbf", "rate", rate, "burst", _BURST, "latency", _QUEUE]
            _run_command("tc", "-n", namespace, "qdisc", "add", "dev", device, *shape)


def _hub() -> str:
    return f"peers-{os.getpid()}-hub"


def _machine(number: int) -> str:
    return f"peers-{os.getpid()}-{number}"


def _run_command(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done
