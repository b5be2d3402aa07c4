"""A coordinator and its devices as real processes, for scenarios that kill, freeze, cut and restart them.

    with ProcessFleet(context.folder, rounds_job(devices=4)) as fleet:
        fleet.wait_committed(3)
        fleet.kill("d-1"); fleet.restart("d-1")
        fleet.kill_coordinator(); fleet.resume_coordinator()

With a `FleetNetwork` every process is in a network namespace of its own, and `cut` and `restore` act on its link.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import tomli_w

from benchmarks.faults.command_process import CommandProcess, wait_until
from benchmarks.faults.committed_rounds import CommitWatcher
from benchmarks.peers.process_group import free_ports
from benchmarks.shaped_network import ShapedNetwork
from potluck.job import make

__all__ = ["START_S", "FleetNetwork", "ProcessFleet", "pipeline_job", "rounds_job"]

START_S = 120.0  # for processes to start on a busy machine
_JOIN = re.compile(r"potluck join (\S+) --(?:name|certs) (\S+) --token (\S+)")
_ENDLESS = 10**6  # rounds; scenarios stop the run themselves


class FleetNetwork(NamedTuple):
    """The machines of one fleet in a network: the coordinator's first, then those of the devices in order."""

    network: ShapedNetwork
    first: int = 0


class ProcessFleet:
    """A live run as a user starts it: `potluck serve`, and `potluck join` for each device of the fleet."""

    def __init__(
        self,
        folder: Path,
        job: Mapping[str, Any],
        *,
        network: FleetNetwork | None = None,
        join_options: Sequence[str] = ("--threads", "1", "--throttle", "0.1"),
        serve_options: Sequence[str] = (),
        started: Sequence[str] | None = None,
    ) -> None:
        """Devices that are not `started` can be joined by others, with the tokens in `invitations`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.run = folder, folder / "run"
        self.members = [device.name for device in make(job).fleet.members]
        self.names = self.members if started is None else list(started)
        self._network = network
        self._join_options = join_options
        (folder / "job.toml").write_text(tomli_w.dumps(job))
        host = network.network.address(network.first) if network else "127.0.0.1"
        insecure = ["--insecure"] if network else []
        address = f"{host}:{free_ports(1)[0]}"
        self._serve = ["serve", str(folder / "job.toml"), "--listen", address, "--out", str(self.run), "--json"]
        self._serve += [*insecure, *serve_options]
        self.invitations: dict[str, tuple[str, str]] = {}  # device → address and token
        self.devices: dict[str, CommandProcess] = {}
        self._killed: set[str] = set()
        self.commits = CommitWatcher(self.run)

    def __enter__(self) -> ProcessFleet:
        try:
            self.coordinator = self._start("coordinator", self._serve)
            wait_until("the invitations of serve", self._read_invitations, START_S)
            for name in self.names:
                self.restart(name)
        except BaseException:
            self._end_processes()
            raise
        self.commits.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.commits.stop()
        self._end_processes()

    # --- what a scenario does to it ----------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        self._killed.add(name)
        self.devices[name].kill()

    def restart(self, name: str) -> None:
        """Start a device that does not run."""
        self._killed.discard(name)
        address, token = self.invitations[name]
        words = ["join", address, "--name", name, "--token", token, "--once", *self._join_options]
        self.devices[name] = self._start(name, words)

    def freeze(self, name: str) -> None:
        self.devices[name].freeze()

    def thaw(self, name: str) -> None:
        self.devices[name].thaw()

    def cut(self, name: str) -> None:
        """Take down a device's link; needs a network."""
        assert self._network is not None
        self._network.network.cut_link(self._machine(name))

    def restore(self, name: str) -> None:
        assert self._network is not None
        self._network.network.restore_link(self._machine(name))

    def drop_packets(self, name: str, fraction: float) -> None:
        """Drop this fraction of a device's packets, from now on; needs a network."""
        assert self._network is not None
        self._network.network.drop_packets(self._machine(name), fraction)

    def kill_coordinator(self) -> None:
        """kill -9; what was committed until then must be kept."""
        self._killed.add("coordinator")
        self.coordinator.kill()
        self.commits.note_death()

    def resume_coordinator(self, *options: str) -> None:
        self._killed.discard("coordinator")
        self.coordinator = self._start("coordinator", ["resume", str(self.run), "--json", *options])

    def stop(self, seconds: float = START_S) -> int:
        """Ask the run to stop at a safe point, as Ctrl-C does, and return the exit code."""
        self.coordinator.terminate()
        return self.coordinator.wait(seconds)

    # --- what it observes --------------------------------------------------------------------------------------------

    def wait_committed(self, count: int, seconds: float = START_S) -> float:
        """Wait until so many rounds or batches are committed in all; return the seconds that it took."""
        return wait_until(f"{count} commits", lambda: self._has_committed(count), seconds)

    def _has_committed(self, count: int) -> bool:
        if not self.coordinator.is_running:
            raise RuntimeError(f"the coordinator ended: {self.coordinator.log[-600:]}")
        return self.commits.count >= count

    def ended_processes(self) -> list[str]:
        """Processes that ended without being killed, with the last line that they printed."""
        processes = {"coordinator": self.coordinator, **self.devices}
        return [
            f"{name}: {(process.log.strip().splitlines() or [''])[-1]}"
            for name, process in processes.items()
            if not process.is_running and name not in self._killed
        ]

    def pids(self) -> dict[str, int]:
        """Of all processes that run now."""
        running = {name: device.pid for name, device in self.devices.items() if device.is_running}
        return {"coordinator": self.coordinator.pid, **running} if self.coordinator.is_running else running

    def _read_invitations(self) -> bool:
        if not self.coordinator.is_running:
            raise RuntimeError(f"potluck serve ended: {self.coordinator.log[-600:]}")
        self.invitations = {name: (address, token) for address, name, token in _JOIN.findall(self.coordinator.log)}
        return len(self.invitations) == len(self.members)

    def _machine(self, name: str) -> int:
        assert self._network is not None
        return self._network.first + (0 if name == "coordinator" else 1 + self.names.index(name))

    def _start(self, name: str, words: Sequence[str]) -> CommandProcess:
        namespace = self._network.network.namespace_path(self._machine(name)) if self._network else ""
        return CommandProcess(words, self.folder / f"{name}.log", namespace)

    def _end_processes(self) -> None:
        for process in (getattr(self, "coordinator", None), *self.devices.values()):
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()


def rounds_job(devices: int = 4, hidden: int = 800, lease_s: float = 2.0, **settings: Any) -> dict[str, Any]:
    """Synchronous SGD of a model of about 4 bytes × 800 × `hidden`; every round is saved."""
    data = {"kind": "synthetic", "shape": [1, 28, 28], "train": devices * 64, "test": 16}
    return {
        "recipe": "sync-sgd",
        "evaluate": 0,
        "checkpoint": 1,
        "task": {"model": "mlp", "options": {"hidden": [hidden]}, "data": data},
        "rounds": {"batching": {"kind": "fixed", "size": 16}, "patience": "120 s"},
        "stop": {"rounds": _ENDLESS},
        "fleet": _fleet(devices, lease_s),
        **settings,
    }


def pipeline_job(devices: int = 4, width: int = 256, lease_s: float = 2.0, **settings: Any) -> dict[str, Any]:
    """A pipeline of eight layers of `width`²."""
    data = {"kind": "synthetic", "shape": [1, 16, 16], "train": 512, "test": 16}
    return {
        "recipe": "ftpipehd",
        "evaluate": 0,
        "checkpoint": 10,
        "task": {"model": "mlp", "options": {"hidden": [width] * 7}, "data": data},
        "pipeline": {"batch": 32, "patience": "120 s", "optimizer": {"lr": 1e-3, "momentum": 0.0}},
        "stop": {"rounds": _ENDLESS},
        "fleet": _fleet(devices, lease_s),
        **settings,
    }


def _fleet(devices: int, lease_s: float) -> dict[str, Any]:
    link = {"up": "1 Gbit/s", "down": "1 Gbit/s", "latency": "0 s", "overhead": "0 s"}
    return {"devices": [{"name": "d", "count": devices, "flops": "1 GFLOP/s", "link": link}], "lease": lease_s}
