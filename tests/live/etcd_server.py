"""A real etcd for tests, with a data folder and ports of its own."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.live.command_processes import wait_until

__all__ = ["EtcdServer", "require_etcd"]


def require_etcd() -> None:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed: apt-get install etcd-server")


class EtcdServer:
    """One etcd; `stop` and `start` keep its data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        client, peer = _free_port(), _free_port()
        self.address, self._peer = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = (self._folder / "etcd.log").open("ab")
        self._process = subprocess.Popen(
            [
                *("etcd", "--name", "test", "--data-dir", str(self._folder / "etcd")),
                *("--listen-client-urls", self.address, "--advertise-client-urls", self.address),
                *("--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer),
                *("--initial-cluster", f"test={self._peer}", "--unsafe-no-fsync"),
            ],
            stdout=log,
            stderr=log,
        )
        log.close()
        wait_until("etcd", self._is_healthy, 60.0)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _is_healthy(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "etcd.log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=1.0) as answer:
                return b"true" in answer.read()
        except OSError:
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
