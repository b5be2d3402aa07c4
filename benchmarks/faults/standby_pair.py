"""Two coordinators of one run as processes, with a real etcd: one leads, the other follows, either may be killed."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import tomli_w

from benchmarks.faults.command_process import CommandProcess, wait_until
from benchmarks.faults.process_fleet import START_S
from benchmarks.peers.process_group import free_ports
from potluck.job import make

__all__ = ["EtcdProcess", "StandbyPair", "missing_etcd", "newest_version"]

_JOIN = re.compile(r"potluck join (\S+) --name (\S+) --token (\S+)")
_STANDBY = re.compile(r"--standby .*--token (\S+)")


def missing_etcd() -> str | None:
    """What this machine lacks; None if etcd can be started."""
    return None if shutil.which("etcd") else "etcd is not installed: apt-get install etcd-server"


class EtcdProcess:
    """A single etcd with a data folder of its own."""

    def __init__(self, folder: Path) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
        self.address = client
        words = ["etcd", "--name", "faults", "--data-dir", str(folder / "etcd"), "--listen-client-urls", client]
        words += ["--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        words += ["--initial-cluster", f"faults={peer}"]
        with (folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        wait_until("etcd", self._is_healthy, START_S)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=1.0) as answer:
                return b"true" in answer.read()
        except OSError:
            return False


class StandbyPair:
    """`potluck serve` and `potluck serve --standby` of the same job, and the devices of its fleet."""

    def __init__(self, folder: Path, job: Mapping[str, Any], lease_s: float, join_options: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.toml").write_text(tomli_w.dumps(job))
        self.folder = folder
        self.runs = [folder / "first" / "run", folder / "second" / "run"]
        self._addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
        self._names = [device.name for device in make(job).fleet.members]
        self._lease_s = lease_s
        self._join_options = list(join_options)
        self.coordinators: list[CommandProcess | None] = [None, None]
        self._devices: list[CommandProcess] = []

    def __enter__(self) -> StandbyPair:
        self._etcd = EtcdProcess(self.folder)
        try:
            self.start(0)
            wait_until("the join commands", lambda: "--standby" in self._log(0), START_S)
            for address, name, token in _JOIN.findall(self._log(0))[: len(self._names)]:
                words = ["join", address, "--name", name, "--token", token, "--once", *self._join_options]
                self._devices.append(CommandProcess(words, self.folder / f"{name}.log"))
            self._token = _STANDBY.findall(self._log(0))[0]
            self.start(1, standby=True)
        except BaseException:
            self._end_processes()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_processes()

    def start(self, position: int, *, standby: bool = False) -> None:
        """Start a coordinator in its folder, as an operator or a supervisor would after it died."""
        words = ["serve", str(self.folder / "job.toml"), "--listen", self._addresses[position], "--json"]
        words += ["--out", str(self.runs[position]), "--etcd", self._etcd.address, "--leader-lease", str(self._lease_s)]
        words += ["--standby", "--token", self._token] if standby else []
        self.coordinators[position] = CommandProcess(words, self.folder / f"coordinator-{position}.log")

    def leader(self) -> int | None:
        """Which of the two leads, by what their folders say."""
        for position, run in enumerate(self.runs):
            process, status = self.coordinators[position], self._status(run)
            is_alive = process is not None and process.is_running and status.get("pid") == process.pid
            if is_alive and status.get("follows") is None and not status.get("ended"):
                return position
        return None

    def is_in_sync(self) -> bool:
        """Whether the standby may take over."""
        leader = self.leader()
        return leader is not None and any(one["in_sync"] for one in self._status(self.runs[leader])["standbys"])

    def kill(self, position: int) -> None:
        process = self.coordinators[position]
        assert process is not None
        process.kill()

    def stop(self) -> Path:
        """Stop the run at a point from which it could go on; the folder of its leader."""
        leader = self.leader()
        assert leader is not None
        process = self.coordinators[leader]
        assert process is not None
        process.terminate()
        process.wait(START_S)
        return self.runs[leader]

    def _log(self, position: int) -> str:
        process = self.coordinators[position]
        assert process is not None
        if not process.is_running:
            raise RuntimeError(f"coordinator {position} ended: {process.log[-600:]}")
        return process.log

    @staticmethod
    def _status(run: Path) -> dict[str, Any]:
        try:
            status: dict[str, Any] = json.loads((run / "live.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return status

    def _end_processes(self) -> None:
        for process in (*self.coordinators, *self._devices):
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        self._etcd.end()


def newest_version(run: Path) -> int:
    """Of the checkpoints in a run's folder; -1 if it has none."""
    return max((int(path.stem) for path in run.glob("checkpoints/[0-9]*.safetensors")), default=-1)
