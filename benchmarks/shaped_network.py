"""Emulates machines on one switch, each behind a link that the kernel shapes: network namespaces and `tc tbf`.

    machine 0 ──eth0──┐
    machine 1 ──eth0──┤ bridge        both ends of each link are shaped, so up and down each have the rate
    machine 2 ──eth0──┘

Processes on the machines run at full speed; only their packets are slowed, dropped or cut off. Needs root;
`missing_requirement()` says in one line what is missing. A guard process removes everything when the context is left,
and also when this process is killed.
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
_END_S = 30.0
# What the guard runs when its input ends: kill what still runs on the machines, then remove them.
_CLEAN_UP = 'read _; for name; do ip netns pids "$name" | xargs -r kill -9; ip netns del "$name"; done 2>/dev/null'
_ANY_PACKET = 2**32  # of which a fraction is dropped
_LOAD_RANDOM, _JUMP_IF_GREATER, _RETURN = (32, 0xFFFFF038), 37, 6  # classic BPF: ld rand, jgt, ret
_PASS, _DROP = 0, 2  # actions of tc
_LONGEST_SEND = 65535  # packets that the kernel hands over at once, by default


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
    """A context in which the emulated machines exist; one at a time in a process."""

    def __init__(self, rates: Sequence[str]) -> None:
        """`rates` are those of the machines' links in the notation of `tc`: `100mbit`; an empty one is unlimited."""
        self._rates = rates

    def __enter__(self) -> ShapedNetwork:
        names = [*(_machine(number) for number in range(len(self._rates))), _hub()]
        self._guard = subprocess.Popen(
            ["sh", "-c", _CLEAN_UP, "sh", *names], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            _run_command("ip", "netns", "add", _hub())
            _run_command("ip", "-n", _hub(), "link", "add", "name", "switch", "type", "bridge")
            _run_command("ip", "-n", _hub(), "link", "set", "switch", "up")
            for number, rate in enumerate(self._rates):
                self._connect(number, rate)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        """The guard removes everything when its input ends."""
        self._guard.communicate(timeout=_END_S)

    @staticmethod
    def address(number: int) -> str:
        return f"10.77.0.{number + 1}"

    @staticmethod
    def command_on(number: int, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on that machine."""
        return ["ip", "netns", "exec", _machine(number), *command]

    @staticmethod
    def namespace_path(number: int) -> str:
        """The file by which a process can enter that machine's network."""
        return f"/var/run/netns/{_machine(number)}"

    @staticmethod
    def change_rate(number: int, rate: str) -> None:
        """Change the rate of a shaped link, in both directions."""
        for namespace, device in _link_ends(number):
            _run_command("tc", "-n", namespace, "qdisc", "change", "dev", device, *_token_bucket(rate))

    @staticmethod
    def cut_link(number: int) -> None:
        """Pull that machine's cable: `ip link set down`."""
        _run_command("ip", "-n", _hub(), "link", "set", f"port{number}", "down")

    @staticmethod
    def restore_link(number: int) -> None:
        _run_command("ip", "-n", _hub(), "link", "set", f"port{number}", "up")

    @staticmethod
    def drop_packets(number: int, fraction: float) -> None:
        """Drop this fraction of all packets from and to that machine at random; 0 drops none.

        The kernel hands over large sends as one packet; meanwhile it sends packets of the usual size, so that a drop
        costs one of them.
        """
        assert 0 <= fraction < 1
        for namespace, device in _link_ends(number):
            _run_command("tc", "-n", namespace, "qdisc", "del", "dev", device, "clsact", check=False)
            segments = "1" if fraction else str(_LONGEST_SEND)
            _run_command("ip", "-n", namespace, "link", "set", "dev", device, "gso_max_segs", segments)
            if fraction:
                _run_command("tc", "-n", namespace, "qdisc", "add", "dev", device, "clsact")
                program = ["bpf", "direct-action", "bytecode", _dropping_program(fraction)]
                _run_command("tc", "-n", namespace, "filter", "add", "dev", device, "ingress", *program)

    def _connect(self, number: int, rate: str) -> None:
        machine, port = _machine(number), f"port{number}"
        _run_command("ip", "netns", "add", machine)
        _run_command("ip", "-n", _hub(), "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", machine)
        _run_command("ip", "-n", _hub(), "link", "set", port, "master", "switch", "up")
        _run_command("ip", "-n", machine, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run_command("ip", "-n", machine, "link", "set", device, "up")
        for namespace, device in _link_ends(number) if rate else ():
            _run_command("tc", "-n", namespace, "qdisc", "add", "dev", device, *_token_bucket(rate))


def _token_bucket(rate: str) -> list[str]:
    return ["root", "tbf", "rate", rate, "burst", _BURST, "latency", _QUEUE]


def _dropping_program(fraction: float) -> str:
    """Classic BPF, as text: pass a packet if a random number is above a threshold, drop it otherwise."""
    load, offset = _LOAD_RANDOM
    instructions = [
        f"{load} 0 0 {offset}",
        f"{_JUMP_IF_GREATER} 0 1 {int(fraction * _ANY_PACKET)}",
        f"{_RETURN} 0 0 {_PASS}",
        f"{_RETURN} 0 0 {_DROP}",
    ]
    return ",".join([str(len(instructions)), *instructions])


def _link_ends(number: int) -> tuple[tuple[str, str], tuple[str, str]]:
    """The namespace and the device of both ends of a machine's link."""
    return (_machine(number), "eth0"), (_hub(), f"port{number}")


def _hub() -> str:
    return f"potluck-{os.getpid()}-hub"


def _machine(number: int) -> str:
    return f"potluck-{os.getpid()}-{number}"


def _run_command(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done
