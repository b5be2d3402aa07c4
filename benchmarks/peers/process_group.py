"""Starts processes together and ends all of them, with their children, when the context is left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

__all__ = ["TERMINATION_S", "ProcessGroup", "free_ports", "is_listening", "wait_for"]

TERMINATION_S = 5.0  # from SIGTERM to SIGKILL


class ProcessGroup:
    """Starts each process in its own session, with its output in a file of the folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = {**os.environ, **environment}
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, sign)
            if sign == signal.SIGTERM:
                self._wait(TERMINATION_S)
        self._wait(TERMINATION_S)

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._environment, start_new_session=True
            )
        self._processes.append(process)
        return process

    def read_log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


def free_ports(count: int) -> list[int]:
    """Unused ports of the loopback address."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition: Callable[[], bool], description: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"timed out after {seconds:g} s waiting for {description}")
        time.sleep(0.05)
