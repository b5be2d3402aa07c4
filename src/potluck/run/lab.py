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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from potluck import seeds
from potluck.errors import UserError
from potluck.fleet import FleetChange, fleet_changes
from potluck.job import Job
from potluck.loops.node import Node
from potluck.run.argument_checks import check_folder, check_task
from potluck.run.joined_device import JoinOptions, join
from potluck.run.live_addresses import free_loopback_address, uses_direct_links
from potluck.run.live_options import KeptOptions, LabOptions
from potluck.run.live_run import (
    LiveObserver,
    LiveRun,
    LogObserver,
    RejoiningDevices,
    lead_live_run,
    open_admission,
    prepare_live_job,
)
from potluck.run.prepared_job import GivenJob, PreparedJob
from potluck.run.run_opening import create_run
from potluck.run.run_result import Result
from potluck.run.run_store import RunStore
from potluck.run.storage_monitor import map_storage_errors
from potluck.task import Task
from potluck.worlds.live.zenoh_session import Endpoint

__all__ = ["DeviceProcess", "LabDevices", "lab", "resume_lab"]

_JOIN_TIMEOUT_S = 20.0  # how long a device looks for a coordinator that is gone
_TOKEN_HOURS = 7 * 24.0
_PRELOADED = ["potluck.run.lab", "torch._dynamo"]  # the latter is loaded by PyTorch when a model is traced
_AS_THE_FLEET_SAYS = LabOptions()
_log = logging.getLogger("potluck")


def lab(
    job: GivenJob,
    *,
    folder: Path | str,
    task: Task | None = None,
    data: Path | None = None,
    options: LabOptions = _AS_THE_FLEET_SAYS,
    observer: LiveObserver | None = None,
) -> Result:
    """Run a job live on this machine alone, saved to `folder`; every device of the fleet is a process.

    `task` replaces the one that the job names; it is pickled for the processes.
    """
    check_task(task)
    folder, data = check_folder("folder", folder) or Path(), check_folder("data", data)
    watch, code = observer.on_round if observer else None, DeviceCode.pack(task, data)
    observer = observer or LogObserver()
    prepared = prepare_live_job(job, task, data)
    with create_run(prepared, folder, watch, observer.should_stop) as store:
        return _lead_lab(prepared, store, code, KeptOptions(lab=options, data=data), observer)


def resume_lab(
    prepared: PreparedJob,
    store: RunStore,
    kept: KeptOptions,
    task: Task | None,
    observer: LiveObserver,
    rejoining: RejoiningDevices,
) -> Result:
    """Lead the run of a store from its checkpoint; its devices are started again."""
    return _lead_lab(prepared, store, DeviceCode.pack(task, kept.data), kept, observer, rejoining)


class DeviceCode(NamedTuple):
    """What the processes of a lab need beside the job."""

    data: Path | None
    pickled_task: bytes | None = None

    @staticmethod
    def pack(task: Task | None, data: Path | None) -> DeviceCode:
        try:
            return DeviceCode(data, None if task is None else _pickle_task(task))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f"the task cannot be handed to the devices of a lab ({error}); define its model and loss at the top"
                " level of a module, or name it in the job as task = 'package.module:function'"
            ) from None

    def load_task(self) -> Task | None:
        return None if self.pickled_task is None else pickle.loads(self.pickled_task)


def _pickle_task(task: Task) -> bytes:
    """By reference to its module, or by value where there is none that a process could import, as in a notebook."""
    if hasattr(sys.modules["__main__"], "__file__"):
        return pickle.dumps(task)
    try:
        import cloudpickle
    except ImportError:
        raise UserError("a lab in a notebook needs cloudpickle: pip install 'potluck[notebook]'") from None
    pickled: bytes = cloudpickle.dumps(task)
    return pickled


def _lead_lab(
    prepared: PreparedJob,
    store: RunStore,
    code: DeviceCode,
    kept: KeptOptions,
    observer: LiveObserver,
    rejoining: RejoiningDevices | None = None,
) -> Result:
    assert kept.lab is not None
    job, address = prepared.job, free_loopback_address()
    with map_storage_errors(store.folder):
        admission = open_admission(store)
    endpoint = Endpoint(listen=(address,), lease=float(job.fleet.lease), direct=uses_direct_links(job))
    run = LiveRun(store, admission, endpoint, kept, rejoining)
    token = run.issue_token(hours=_TOKEN_HOURS)
    with LabDevices(job, address, token, code, play_faults=kept.lab.play_faults) as run.devices:
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
            await asyncio.sleep(max(0.0, change.at - node.now()))  # also for others, of which there may be no end
            if change.what not in ("crash", "leave", "start"):
                continue
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
