"""Processes that belong together: at the end, none of them or of their children is left."""

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

__all__ = ["PATIENCE_S", "Crowd", "free_ports", "listens", "wait_for"]

PATIENCE_S = 5.0  # for those who are asked to end, before they are killed


class Crowd:
    """Starts processes, each as the head of a group of its own, with what they say in files of a folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = {**os.environ, **environment}
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Crowd:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, sign)
            if sign == signal.SIGTERM:
                self._wait(PATIENCE_S)
        self._wait(PATIENCE_S)

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._environment, start_new_session=True
            )
        self._processes.append(process)
        return process

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(happened: Callable[[], bool], what: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > until:
            raise SystemExit(f"waited {seconds:g} s for {what}")
        time.sleep(0.05)
