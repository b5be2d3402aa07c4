"""Makes this process a device of a live run: `join` connects to a coordinator and trains as it asks."""

from __future__ import annotations

import asyncio
import logging
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

import torch

from potluck.errors import RunError, UserError
from potluck.fleet import Fleet
from potluck.job import Job, make
from potluck.loops.messages import Gift, Holdings
from potluck.loops.node import COORDINATOR, Node
from potluck.loops.pipeline import messages as pipeline
from potluck.run.argument_checks import check_folder, check_task, check_threads
from potluck.run.device_state import DeviceStates, SavedDeviceStates
from potluck.run.live_addresses import coordinator_locator, device_identity, device_listen_locator
from potluck.run.live_run import job_digest
from potluck.run.notebook_thread import run_coroutine
from potluck.run.prepared_job import PreparedJob, prepare_job
from potluck.task import Task
from potluck.worlds.live import wire_format
from potluck.worlds.live.coordinator_discovery import find_coordinator
from potluck.worlds.live.device_runtime import DeviceOptions, run_device
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRequest
from potluck.worlds.live.zenoh_session import Endpoint

__all__ = ["JoinOptions", "JoinedDevice", "join"]

wire_format.register_messages(Gift, *pipeline.KINDS)

_log = logging.getLogger("potluck")


@dataclass(frozen=True)
class JoinOptions:
    """How a device takes part in a run."""

    certs: Path | None = None  # this device's folder from `potluck certs issue`, for tls/ addresses
    listen: str = ""  # HOST[:PORT] at which other devices reach this one directly
    once: bool = True  # end with the run instead of waiting for the next one
    threads: int = 0  # processor cores to compute on; 0: $OMP_NUM_THREADS, else all
    throttle: float = 1.0  # the fraction of this machine's speed to use
    memory_bytes: int = 0  # the limit that this process has set itself; 0: none
    timeout_s: float = 60.0  # how long to look for a coordinator, with `once`
    shared_memory: bool = False

    def __post_init__(self) -> None:
        check_threads(self.threads)

    @property
    def thread_count(self) -> int:
        """The threads asked for, those that the environment sets as PyTorch reads it, or all cores."""
        from_environment = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
        return self.threads or (int(from_environment) if from_environment.isdecimal() else 0) or os.cpu_count() or 1


def join(
    address: str,
    token: str = "",
    *,
    name: str = "",
    task: Task | None = None,
    data: Path | None = None,
    options: JoinOptions = JoinOptions(),
) -> str:
    """Take part in the run of the coordinator at `address`, and say how it ended.

    Without an address the coordinator is looked for on the local network. `name` is this device's name in the fleet,
    by default its certificate's or the host's. `task` replaces the one that the job names, as on the coordinator.
    """
    check_task(task)
    data = check_folder("data", data)
    identity = device_identity(address, options.certs, name)
    own = (device_listen_locator(options.listen, identity),) if options.listen else ()
    if address:
        connect = coordinator_locator(address, identity.protocol)
    else:
        connect = find_coordinator(identity.protocol, options.timeout_s if options.once else None)
    endpoint = Endpoint(
        connect=(connect,), listen=own, direct=bool(own), tls=identity.tls, shared_memory=options.shared_memory
    )
    if not token:
        raise UserError("this run requires a join token; pass --token (printed by `potluck serve`)")
    _log.info("%s: joining %s", identity.name, connect)
    torch.set_num_threads(options.thread_count)
    device, once = JoinedDevice(task, data), options.once
    request = JoinRequest(
        name=identity.name, token=token, threads=options.thread_count, memory_bytes=options.memory_bytes
    )
    taking_part = DeviceOptions(
        once=once,
        timeout_s=options.timeout_s,
        throttle=options.throttle,
        load_fleet=device.load_fleet,
        known_digest=lambda: device.digest if once else "",
    )
    return run_coroutine(run_device(endpoint, request, device.train, taking_part))


class JoinedDevice:
    """What a device has prepared for a job, for all its incarnations in that job's run."""

    def __init__(self, task: Task | None = None, data: Path | None = None) -> None:
        self._task = task
        self._data = data
        self.digest = ""  # of the job that is prepared
        self._prepared: asyncio.Future[PreparedJob] | None = None
        self._missing_frozen: set[int] | None = None  # layers whose frozen weights it must fetch; None: not compared

    @staticmethod
    def load_fleet(accepted: JoinAccepted) -> Fleet:
        return _received_job(accepted).fleet

    async def train(self, node: Node, accepted: JoinAccepted) -> None:
        """Take part for one incarnation."""
        prepared = await self._prepare(accepted)
        if prepared.model_digest != accepted.model:
            raise RunError(
                f"{accepted.name} builds another model than the coordinator: its layers have other names or shapes;"
                " install the same task code and the same version of potluck on both"
            )
        if self._missing_frozen is None:
            is_same = await asyncio.to_thread(prepared.frozen.digest) == accepted.frozen
            self._missing_frozen = set() if is_same else set(prepared.frozen.layers_with_weights())
        held = prepared.held_samples(accepted.name)
        if held is not None:
            node.send(COORDINATOR, Holdings(held))
        missing = {accepted.name: (accepted.incarnation, self._missing_frozen)}
        async with prepared.live_inputs(node):
            states = DeviceStates(SavedDeviceStates(missing_frozen=missing), {})
            await prepared.build_device_loop(node, states).main()

    async def _prepare(self, accepted: JoinAccepted) -> PreparedJob:
        """Once for each job: an incarnation that ends meanwhile leaves the preparation to the next one."""
        if self._prepared is None or self.digest != accepted.digest:
            job = _received_job(accepted)
            if job_digest(job) != accepted.digest:
                raise RunError(
                    "the job as received does not match its digest; install the coordinator's version of potluck"
                )
            if self._prepared is not None:
                await asyncio.wait([self._prepared])  # two models must not be traced at once
            self._prepared = asyncio.ensure_future(asyncio.to_thread(self._prepare_job, job, accepted.name))
            self.digest, self._missing_frozen = accepted.digest, None
        return await asyncio.shield(self._prepared)

    def _prepare_job(self, job: Job, name: str) -> PreparedJob:
        prepared = prepare_job(job, self._task, self._data, load_weights=False)
        prepared.check_device(name)
        return prepared


def _received_job(accepted: JoinAccepted) -> Job:
    return make(tomllib.loads(accepted.job), resolved=True)
