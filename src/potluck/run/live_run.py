"""A job on real processes and devices: the coordinator's side of a live run, and a device's.

    serve   opens the door, waits for the fleet, leads the rounds, keeps the run's folder
    join    knocks, gets the job, builds the model from it, takes part; for ever, or once

Both sides build the same things from the same job; only numbers travel.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import tomllib
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import zenoh

from potluck.errors import RunError, UserError
from potluck.job import Job, dump_job, make
from potluck.loops.messages import Gift
from potluck.loops.node import Envelope, Node
from potluck.loops.pipeline import messages as pipeline
from potluck.loops.run_progress import RunOutcome
from potluck.run import Result, build_setup
from potluck.run.device_state import DeviceStates, SavedDeviceStates
from potluck.run.final_model import save_final_model
from potluck.run.live_stream import run_live_stream
from potluck.run.pipeline_setup import PipelineSetup
from potluck.run.rounds_setup import RoundsSetup
from potluck.run.run_store import RunStore
from potluck.worlds.live import wire_format
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, StartCondition, run_coordinator
from potluck.worlds.live.device_runtime import DeviceOptions, run_device
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRefused, JoinRequest, RunInfo
from potluck.worlds.live.refusal_log import RefusalReporter
from potluck.worlds.live.security.admission_policy import AdmissionPolicy
from potluck.worlds.live.security.refusal_reasons import report_unadmitted_links, serve_refusal_reasons
from potluck.worlds.live.zenoh_session import Endpoint

__all__ = ["JoinOptions", "ServeOptions", "job_digest", "join_run", "serve_run"]

wire_format.register_messages(Gift, *pipeline.KINDS)

_LOOK_EVERY_S = 0.25  # for a wish to stop


@dataclass(frozen=True)
class ServeOptions:
    """How the coordinator is reached, and who comes in."""

    endpoint: Endpoint
    admission: AdmissionPolicy
    wait_s: float = 600.0  # for the fleet, before the run begins with whoever is here
    emulate_fleet: bool = False  # the fleet's links, speeds and faults (a lab)
    on_membership: Callable[[Mapping[str, int]], None] = lambda here: None  # told whenever someone comes or goes
    on_listening: Callable[[], None] = lambda: None  # told when devices can come
    on_begin: Callable[[Node], None] = lambda node: None


@dataclass(frozen=True)
class JoinOptions:
    """How a device takes part."""

    endpoint: Endpoint
    name: str
    token: str
    once: bool = False
    threads: int = 1
    throttle: float = 1.0
    memory_bytes: int = 0
    patience_s: float = 60.0
    data: Path | None = None


def job_digest(job: Job) -> str:
    """Tells jobs apart."""
    return hashlib.sha256(dump_job(job).encode()).hexdigest()


def serve_run(setup: RoundsSetup | PipelineSetup, keeper: RunStore, door: ServeOptions) -> Result:
    """Lead a run, from the beginning or from where its keeper stands."""
    began = time.perf_counter()
    if keeper.tensors is not None:
        setup.server.restore(keeper.tensors)
    keeper.attach_tensors(setup.server.tensors)
    keeper.save_every_round()
    torch.set_num_threads(1)  # so that scores do not depend on the machine
    try:
        ending = asyncio.run(_coordinate_run(setup, keeper, door))
    except UserError:
        raise
    except Exception as error:
        keeper.write_error("".join(traceback.format_exception(error)))
        ending = RunOutcome("failed", f"{type(error).__name__}: {error}")
    module = setup.trained_module()
    carver = None if isinstance(setup, PipelineSetup) else setup.extractor
    summary = keeper.finish_run(ending, time.perf_counter() - began, save_final_model(module, carver, keeper.folder))
    return Result(ending.status, ending.reason, summary, keeper.folder, module)


async def _coordinate_run(setup: RoundsSetup | PipelineSetup, keeper: RunStore, door: ServeOptions) -> RunOutcome:
    job = setup.job
    card = RunInfo(
        run=keeper.folder.name if keeper.folder else "run", job=dump_job(job), digest=job_digest(job),
        model=setup.model_digest, lease=float(job.fleet.lease), limit_bytes=setup.max_message_bytes,
        common_names=door.admission.common_names if door.admission.authority_folder is not None else {},
    )  # fmt: skip
    names = [device.name for device in job.fleet.members]

    def start_coordinator(node: Node) -> Coroutine[Any, Any, RunOutcome]:
        door.on_begin(node)
        return setup.build_coordinator(_InterruptibleNode(node), keeper, keeper.progress).main()

    def decide_admission(hello: JoinRequest) -> str | JoinRefused:
        reason = door.admission.refusal_reason(hello.name, hello.token, datetime.now(UTC), hello.body)
        if reason is None and hello.digest not in ("", card.digest):
            reason = f"{hello.name} takes part in another job than this run's; start it anew to join this one"
        return hello.name if reason is None else JoinRefused(reason=reason)

    return await run_coordinator(
        door.endpoint,
        CoordinatedRun(
            info=card,
            seed=job.seed,
            journal=keeper.journal,
            start_s=keeper.start_s,
            fleet=job.fleet if door.emulate_fleet else None,
        ),
        start_coordinator,
        AdmissionHooks(
            check=decide_admission,
            on_admitted=lambda hello: door.admission.admitted_devices.record_admission(hello.name, hello.body),
            on_members_changed=door.on_membership,
            on_session_open=partial(_on_session_open, door),
        ),
        StartCondition(devices=names, timeout_s=door.wait_s, start_now=lambda: keeper.interrupt_outcome() is not None),
    )


def _on_session_open(door: ServeOptions, session: zenoh.Session, refused: RefusalReporter) -> None:
    """Whom certificates keep from the door learns why in the lobby, and the log learns who it was."""
    if door.admission.authority_folder is not None:
        serve_refusal_reasons(session, door.admission.permanent_refusal)
        report_unadmitted_links(session, door.admission.common_names, refused)
    door.on_listening()


class _InterruptibleNode:
    """A node whose waiting is broken off now and then, so that a wish to stop is heard."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.name = node.name
        self.incarnation = node.incarnation
        self.now, self.sleep, self.send, self.compute = node.now, node.sleep, node.send, node.compute
        self.speed, self.rng, self.record = node.speed, node.rng, node.record

    async def receive(self, until: float | None = None) -> Envelope | None:
        soon = self.now() + _LOOK_EVERY_S
        return await self._node.receive(soon if until is None else min(until, soon))


def join_run(seat: JoinOptions) -> str:
    """Take part in a run; says how it ended."""
    torch.set_num_threads(seat.threads)
    return asyncio.run(_JoinedDevice(seat).join_and_train())


class _JoinedDevice:
    """A device: what it has built for a job serves all lives that it has in it."""

    def __init__(self, seat: JoinOptions) -> None:
        self._options = seat
        self._digest = ""
        self._setup: asyncio.Future[RoundsSetup | PipelineSetup] | None = None

    async def join_and_train(self) -> str:
        seat = self._options
        hello = JoinRequest(name=seat.name, token=seat.token, threads=seat.threads, memory_bytes=seat.memory_bytes)
        options = DeviceOptions(
            once=seat.once, timeout_s=seat.patience_s, throttle=seat.throttle,
            load_fleet=lambda welcome: _received_job(welcome).fleet,
            known_digest=lambda: self._digest if seat.once else "",
        )  # fmt: skip
        return await run_device(seat.endpoint, hello, self._train_as_member, options)

    async def _train_as_member(self, node: Node, welcome: JoinAccepted) -> None:
        setup = await self._setup_for_job(welcome)
        if setup.model_digest != welcome.model:
            raise RunError(
                f"{welcome.name} builds another model than the coordinator: its layers have other names or shapes;"
                " install the same task code and the same version of potluck on both"
            )
        if isinstance(setup, PipelineSetup):
            await setup.build_device_loop(node, None).main()
            return
        async with run_live_stream(setup, node):
            await setup.build_device_loop(node, DeviceStates(SavedDeviceStates(), {})).main()

    async def _setup_for_job(self, welcome: JoinAccepted) -> RoundsSetup | PipelineSetup:
        """Once for a job: a life that ends while it is under way leaves it to the next."""
        if self._setup is None or self._digest != welcome.digest:
            job = _received_job(welcome)
            if job_digest(job) != welcome.digest:
                raise RunError("the job that came does not match its digest; is the same version of potluck here?")
            if self._setup is not None:
                await asyncio.wait([self._setup])  # tracing two models at once would mix them up
            self._setup = asyncio.ensure_future(
                asyncio.to_thread(build_setup, job, None, self._options.data, elsewhere=True)
            )
            self._digest = welcome.digest
        return await asyncio.shield(self._setup)


def _received_job(welcome: JoinAccepted) -> Job:
    return make(tomllib.loads(welcome.job))
