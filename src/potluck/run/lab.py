"""The whole fleet as processes of this machine: each device as slow as its file says, its link shaped, its faults real.

Crashes of the fault script are SIGKILLs, returns are new processes; the links are shaped by our own transport.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing as mp
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from potluck import seeds
from potluck.fleet import FleetChange, fleet_changes
from potluck.job import Job
from potluck.loops.node import Node
from potluck.run.live_run import JoinOptions, join_run
from potluck.worlds.live.security.admission_policy import AdmissionPolicy
from potluck.worlds.live.zenoh_session import Endpoint

__all__ = ["LabDevices", "free_loopback_address", "uses_direct_links"]

_PATIENCE_S = 20.0  # how long a device looks for a coordinator that is gone
_LOADED_ONCE = ["potluck.run.lab", "torch._dynamo"]  # the latter is loaded by PyTorch when a model is traced
_log = logging.getLogger("potluck")


def free_loopback_address() -> str:
    """A loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp/127.0.0.1:{probe.getsockname()[1]}"


class LabDevices:
    """The device processes of a lab; as a context, none of them is left at its end."""

    def __init__(
        self, job: Job, address: str, gate: AdmissionPolicy, data: Path | None, *, crashes: bool = True
    ) -> None:
        self._job = job
        self._crashes = crashes
        token = gate.issue_token(datetime.now(UTC) + timedelta(days=7))
        connect = (address,)
        self.join_options = {
            device.name: JoinOptions(
                Endpoint(
                    connect=connect,
                    direct=uses_direct_links(job),
                    listen=("tcp/127.0.0.1:0",) if uses_direct_links(job) else (),
                ),
                device.name,
                token,
                once=True,
                patience_s=_PATIENCE_S,
                data=data,
            )
            for device in job.fleet.members
        }
        # A server that has loaded everything once and then forks: starting a device takes milliseconds, not seconds.
        # It forks before any session is open, so nothing of Zenoh's is shared.
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload(_LOADED_ONCE)
        self.processes: dict[str, Any] = {}
        self._script_task: asyncio.Task[None] | None = None

    def __enter__(self) -> LabDevices:
        _, absent = self._fault_script() if self._crashes else (iter(()), set())
        for name in self.join_options:
            if name not in absent:
                self.start_device(name)
        return self

    def __exit__(self, *error: object) -> None:
        """They end with the run; whoever does not is ended."""
        for process in self.processes.values():
            process.join(2.0 if error[0] is None else 0.0)
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
            process.join()

    def start_device(self, name: str) -> None:
        before = self.processes.get(name)
        if before is not None and before.is_alive():
            return
        process = self._context.Process(
            target=_run_device_process, args=(self.join_options[name], list(sys.path)), name=name
        )
        process.start()
        self.processes[name] = process

    def kill_device(self, name: str) -> None:
        process = self.processes.get(name)
        if process is not None:
            process.kill()
            process.join()

    def start_fault_script(self, node: Node) -> None:
        """Act out the crashes and returns of the fault script, from the run's beginning."""
        if self._crashes:
            self._script_task = asyncio.ensure_future(self._play_fault_script(node))

    async def _play_fault_script(self, node: Node) -> None:
        changes, _ = self._fault_script()
        for change in changes:
            if change.what not in ("crash", "leave", "start"):
                continue
            await asyncio.sleep(max(0.0, change.at - node.now()))
            _log.info("%s: %s, as the fault script says", change.device, change.what)
            await asyncio.to_thread(self.start_device if change.what == "start" else self.kill_device, change.device)

    def _fault_script(self) -> tuple[Iterator[FleetChange], set[str]]:
        seed = self._job.seed
        return fleet_changes(self._job.fleet, lambda name: seeds.child_generator(seed, "fleet", name))


def uses_direct_links(job: Job) -> bool:
    """Whether devices speak to each other."""
    return job.pipeline is not None or (job.stream is not None and job.stream.injection is not None)


def _run_device_process(seat: JoinOptions, path: list[str]) -> None:
    """The main of a device's process."""
    sys.path[:] = path
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the lab, which tells its devices
    threading.Thread(target=_exit_with_lab, name="potluck-lab-watch", daemon=True).start()
    logging.getLogger("potluck").setLevel(logging.WARNING)
    try:
        join_run(seat)
    except Exception as error:
        _log.error("%s: %s", seat.name, error)
        raise SystemExit(1) from None


def _exit_with_lab() -> None:
    """However the lab ends, its devices do: the server that forked them would not tell them."""
    lab = mp.parent_process()
    assert lab is not None
    lab.join()
    os._exit(1)
