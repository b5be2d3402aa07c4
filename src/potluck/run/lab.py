"""Runs a live fleet on this machine: a process per device, as slow and as far away as the fleet file says.

Crashes of the fault script are SIGKILLs, restarts are new processes; our own transport shapes the links.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing as mp
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from potluck import seeds
from potluck.errors import RunError, UserError
from potluck.fleet import FleetChange, fleet_changes
from potluck.job import Job
from potluck.loops.node import Node
from potluck.run.joined_device import JoinOptions, join
from potluck.run.live_addresses import free_loopback_address, uses_direct_links
from potluck.run.live_run import (
    LiveObserver,
    LiveRun,
    LogObserver,
    ServeOptions,
    lead_live_run,
    open_admission,
    prepare_live_job,
    serve_prepared,
)
from potluck.run.live_status import read_live_status
from potluck.run.prepared_job import GivenJob, PreparedJob, prepare_job
from potluck.run.run_result import Result
from potluck.run.run_store import RunStore
from potluck.run.simulated_run import load_run_job
from potluck.task import Task
from potluck.worlds.live.zenoh_session import Endpoint

__all__ = ["DeviceProcess", "LabDevices", "LabOptions", "lab", "resume_live"]

_JOIN_TIMEOUT_S = 20.0  # how long a device looks for a coordinator that is gone
_TOKEN_HOURS = 7 * 24.0
_RESUME_WAIT_S = 60.0
_PRELOADED = ["potluck.run.lab", "torch._dynamo"]  # the latter is loaded by PyTorch when a model is traced
_log = logging.getLogger("potluck")


@dataclass(frozen=True)
class LabOptions:
    """What a lab acts out."""

    wait_s: float = 120.0  # for the device processes, before the run starts without the missing ones
    emulate_fleet: bool = True  # links and speeds as the fleet says; else as fast as this machine is
    play_faults: bool = True  # crashes and restarts as the fleet's fault script says


def lab(
    job: GivenJob,
    *,
    folder: Path | str,
    task: Task | None = None,
    data: Path | None = None,
    options: LabOptions = LabOptions(),
    observer: LiveObserver | None = None,
) -> Result:
    """Run a job live on this machine alone, saved to `folder`; every device of the fleet is a process.

    `task` replaces the one that the job names; it is pickled for the processes.
    """
    observer, code = observer or LogObserver(), DeviceCode.pack(task, data)
    prepared = prepare_live_job(job, task, data)
    store = RunStore.create_run(prepared.job, Path(folder), observer.on_round, observer.should_stop)
    return _lead_lab(prepared, store, code, options, observer)


def resume_live(
    folder: Path | str,
    *,
    overrides: Sequence[str] = (),
    task: Task | None = None,
    data: Path | None = None,
    observer: LiveObserver | None = None,
) -> Result:
    """Resume a live run at the address where its devices look for it; a lab starts its devices again."""
    folder, observer = Path(folder), observer or LogObserver()
    job, status = load_run_job(folder, overrides), read_live_status(folder)
    if status is None:
        raise RunError(f"{folder} is not the folder of a live run")
    if status.is_alive:
        raise RunError(f"process {status.pid} still leads {folder}; stop it first with `potluck stop {folder}`")
    prepared = prepare_job(job, task, data, load_weights=False)
    store = RunStore.reopen_run(job, folder, observer.on_round, observer.should_stop)
    if status.lab:
        options = LabOptions(wait_s=_RESUME_WAIT_S)
        return _lead_lab(prepared, store, DeviceCode.pack(task, data), options, observer)
    certs = Path(status.certs) if status.certs else None
    listen = status.listen.partition("/")[2]
    serving = ServeOptions(listen=listen, certs=certs, insecure=certs is None, wait_s=_RESUME_WAIT_S)
    return serve_prepared(prepared, store, serving, observer)


class DeviceCode(NamedTuple):
    """What the processes of a lab need beside the job."""

    data: Path | None
    pickled_task: bytes | None = None

    @staticmethod
    def pack(task: Task | None, data: Path | None) -> DeviceCode:
        try:
            return DeviceCode(data, None if task is None else pickle.dumps(task))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f"the task cannot be handed to the devices of a lab ({error}); define its model and loss at the top"
                " level of a module, or name it in the job as task = 'package.module:function'"
            ) from None

    def load_task(self) -> Task | None:
        return None if self.pickled_task is None else pickle.loads(self.pickled_task)


def _lead_lab(
    prepared: PreparedJob, store: RunStore, code: DeviceCode, options: LabOptions, observer: LiveObserver
) -> Result:
    job, address, admission = prepared.job, free_loopback_address(), open_admission(store)
    endpoint = Endpoint(listen=(address,), lease=float(job.fleet.lease), direct=uses_direct_links(job))
    run = LiveRun(store, admission, endpoint, options.wait_s, emulate_fleet=options.emulate_fleet)
    token = run.issue_token(hours=_TOKEN_HOURS)
    with LabDevices(job, address, token, code, play_faults=options.play_faults) as run.devices:
        return lead_live_run(prepared, run, observer)


class DeviceProcess(NamedTuple):
    """The arguments of one device process of a lab."""

    address: str
    token: str
    name: str
    code: DeviceCode
    options: JoinOptions


class LabDevices:
    """The device processes of a lab; none of them outlives the context."""

    def __init__(self, job: Job, address: str, token: str, code: DeviceCode, *, play_faults: bool = True) -> None:
        self._job = job
        self._play_faults = play_faults
        listen = "127.0.0.1:0" if uses_direct_links(job) else ""
        options = JoinOptions(listen=listen, threads=1, timeout_s=_JOIN_TIMEOUT_S)
        self.arguments = {
            device.name: DeviceProcess(address, token, device.name, code, options) for device in job.fleet.members
        }
        # A server that has loaded everything once and then forks: starting a device takes milliseconds, not seconds.
        # It forks before any session is open, so nothing of Zenoh's is shared.
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self.processes: dict[str, Any] = {}
        self._script_task: asyncio.Task[None] | None = None

    def __enter__(self) -> LabDevices:
        _, absent = self._fault_script() if self._play_faults else (iter(()), set())
        for name in self.arguments:
            if name not in absent:
                self.start_device(name)
        return self

    def __exit__(self, *error: object) -> None:
        """Devices end with the run; those that do not are killed."""
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
            target=_run_device_process, args=(self.arguments[name], list(sys.path)), name=name
        )
        process.start()
        self.processes[name] = process

    def kill_device(self, name: str) -> None:
        process = self.processes.get(name)
        if process is not None:
            process.kill()
            process.join()

    def start_fault_script(self, node: Node) -> None:
        """Act out the crashes and restarts of the fault script, from the start of the run."""
        if self._play_faults:
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


def _run_device_process(arguments: DeviceProcess, path: list[str]) -> None:
    """The main function of a device's process."""
    sys.path[:] = path
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the lab, which tells its devices
    threading.Thread(target=_exit_with_lab, name="potluck-lab-watch", daemon=True).start()
    logging.getLogger("potluck").setLevel(logging.WARNING)
    address, token, name, code, options = arguments
    try:
        join(address, token, name=name, task=code.load_task(), data=code.data, options=options)
    except Exception as error:
        _log.error("%s: %s", name, error)
        raise SystemExit(1) from None


def _exit_with_lab() -> None:
    """However the lab ends, its devices end too: the server that forked them would not stop them."""
    lab_process = mp.parent_process()
    assert lab_process is not None
    lab_process.join()
    os._exit(1)
