"""Leads a live run: `serve` prepares a job, listens for devices and trains with those that join."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import zenoh

from potluck.errors import UserError
from potluck.job import Job, dump_job
from potluck.loops.messages import Gift
from potluck.loops.node import Envelope, Node
from potluck.loops.pipeline import messages as pipeline
from potluck.loops.run_progress import RunOutcome
from potluck.run.live_addresses import listen_locator, uses_direct_links
from potluck.run.live_status import StatusTracker, track_live_status
from potluck.run.prepared_job import GivenJob, PreparedJob, load_given_job, prepare_job
from potluck.run.run_result import Result, run_to_end
from potluck.run.run_store import RunStore
from potluck.task import Task
from potluck.worlds.live import wire_format
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, StartCondition, run_coordinator
from potluck.worlds.live.handshake_messages import JoinRefused, JoinRequest, RunInfo
from potluck.worlds.live.refusal_log import RefusalReporter
from potluck.worlds.live.security.admission_policy import AdmissionPolicy
from potluck.worlds.live.security.refusal_reasons import report_unadmitted_links, serve_refusal_reasons
from potluck.worlds.live.security.tls_credentials import TlsCredentials
from potluck.worlds.live.zenoh_session import Endpoint

if TYPE_CHECKING:
    from potluck.run.lab import LabDevices

__all__ = [
    "LiveObserver",
    "LiveRun",
    "LogObserver",
    "ServeOptions",
    "job_digest",
    "lead_live_run",
    "open_admission",
    "prepare_live_job",
    "serve",
    "serve_prepared",
]

wire_format.register_messages(Gift, *pipeline.KINDS)

_CHECK_STOP_EVERY_S = 0.25
_TOKEN_HOURS = 24.0

_log = logging.getLogger("potluck")


@dataclass(frozen=True)
class ServeOptions:
    """How devices reach the coordinator, and how long it waits for them."""

    listen: str = ""  # HOST[:PORT]; by default 127.0.0.1, with certificates or `insecure` 0.0.0.0
    certs: Path | None = None  # the folder made by `potluck certs init`: mutual TLS
    insecure: bool = False  # listen beyond this machine without TLS
    wait_s: float = 600.0  # for the fleet, before the run starts without the missing devices
    discover: bool = False  # let devices of the local network find the coordinator by multicast
    shared_memory: bool = False  # between processes of one machine


@dataclass
class LiveRun:
    """A live run, as its observer sees it."""

    store: RunStore
    admission: AdmissionPolicy
    endpoint: Endpoint
    wait_s: float
    emulate_fleet: bool = False  # whether the fleet's links, speeds and faults are acted out
    certs: Path | None = None
    devices: LabDevices | None = None  # the processes of a lab
    node: Node | None = None  # the coordinator's, once the run has begun

    @property
    def locator(self) -> str:
        return self.endpoint.listen[0]

    def issue_token(self, device: str | None = None, hours: float = _TOKEN_HOURS) -> str:
        """A join token, valid for all devices of the fleet or for one."""
        expires = datetime.now(UTC) + timedelta(hours=hours)
        return self.admission.issue_token(expires, None if device is None else [device])


class LiveObserver(Protocol):
    """Follows a live run and may stop it; subclass it and override what is of interest."""

    def on_listening(self, run: LiveRun) -> None:
        """Devices can join."""
        _log.info("listening on %s; devices join with the token %s", run.locator, run.issue_token())

    def on_membership(self, run: LiveRun, joined: Mapping[str, int]) -> None:
        """A device joined or was lost; `joined` has the incarnation of each device that is connected."""
        return

    def on_begin(self, run: LiveRun) -> None:
        """The run begins: its devices have joined, or it does without the missing ones."""
        return

    def on_round(self, store: RunStore, now: float) -> None:
        """A round was committed."""
        return

    def should_stop(self) -> bool:
        """Whether to interrupt the run; asked several times a second."""
        return False


class LogObserver(LiveObserver):
    """Logs how devices join, and nothing else."""


def job_digest(job: Job) -> str:
    """Identifies a job by its settings."""
    return hashlib.sha256(dump_job(job).encode()).hexdigest()


def serve(
    job: GivenJob,
    *,
    folder: Path | str,
    task: Task | None = None,
    data: Path | None = None,
    options: ServeOptions = ServeOptions(),
    observer: LiveObserver | None = None,
) -> Result:
    """Lead a live run, saved to `folder`; devices join it with `potluck.join` or `potluck join`.

    `task` replaces the one that the job names; devices then need to be given theirs, too.
    """
    listen_locator(options.listen, options.certs, options.insecure)
    observer = observer or LogObserver()
    prepared = prepare_live_job(job, task, data)
    store = RunStore.create_run(prepared.job, Path(folder), observer.on_round, observer.should_stop)
    return serve_prepared(prepared, store, options, observer)


def prepare_live_job(job: GivenJob, task: Task | None, data: Path | None) -> PreparedJob:
    """Prepare a job for a run that begins."""
    job = load_given_job(job)
    if job.timing_only:
        raise UserError("timing_only: a live run always trains; use `potluck run` for timing only")
    return prepare_job(job, task, data)


def serve_prepared(prepared: PreparedJob, store: RunStore, options: ServeOptions, observer: LiveObserver) -> Result:
    """Lead the run of a store from its start or from its checkpoint."""
    job, certs = prepared.job, options.certs
    locator = listen_locator(options.listen, certs, options.insecure)
    admission = open_admission(store, certs)
    tls = None if certs is None else TlsCredentials.from_bundle(certs / "coordinator")
    if tls is not None:
        tls.check_files()
    endpoint = Endpoint(
        listen=(locator,),
        tls=tls,
        access_control=admission.access_control(),
        lease=float(job.fleet.lease),
        direct=uses_direct_links(job),
        discover=options.discover,
        shared_memory=options.shared_memory,
    )
    return lead_live_run(prepared, LiveRun(store, admission, endpoint, options.wait_s, certs=certs), observer)


def open_admission(store: RunStore, certs: Path | None = None) -> AdmissionPolicy:
    """Who may join a run. Tokens belong to the run, not to its settings: they remain valid when it is resumed."""
    assert store.folder is not None, "a live run has a folder, which holds the keys of its tokens"
    names = [device.name for device in store.job.fleet.members]
    return AdmissionPolicy.for_run(store.folder, store.folder.name, names, certs)


def lead_live_run(prepared: PreparedJob, run: LiveRun, observer: LiveObserver) -> Result:
    """Coordinate a live run to its end."""
    store = run.store
    assert store.folder is not None
    store.save_every_round()
    names = [device.name for device in prepared.job.fleet.members]
    with track_live_status(store.folder, run.locator, run.certs, names, lab=run.devices is not None) as status:
        leading = _LiveCoordinator(prepared, run, observer, status)
        return run_to_end(prepared, store, lambda: asyncio.run(leading.coordinate()))


class _LiveCoordinator:
    """What the live world asks of a run."""

    def __init__(self, prepared: PreparedJob, run: LiveRun, observer: LiveObserver, status: StatusTracker) -> None:
        self._prepared = prepared
        self._run = run
        self._observer = observer
        self._status = status
        job, admission = prepared.job, run.admission
        assert run.store.folder is not None
        self._run_info = RunInfo(
            run=run.store.folder.name,
            job=dump_job(job),
            digest=job_digest(job),
            model=prepared.model_digest,
            lease=float(job.fleet.lease),
            limit_bytes=prepared.max_message_bytes,
            common_names=admission.common_names if admission.authority_folder is not None else {},
        )

    async def coordinate(self) -> RunOutcome:
        run, job = self._run, self._prepared.job
        names = [device.name for device in job.fleet.members]
        return await run_coordinator(
            run.endpoint,
            CoordinatedRun(
                info=self._run_info,
                seed=job.seed,
                journal=run.store.journal,
                start_s=run.store.start_s,
                fleet=job.fleet if run.emulate_fleet else None,
            ),
            self._start_loop,
            self._admission_hooks(),
            StartCondition(
                devices=names, timeout_s=run.wait_s, start_now=lambda: run.store.interrupt_outcome() is not None
            ),
        )

    def _admission_hooks(self) -> AdmissionHooks:
        policy = self._run.admission
        return AdmissionHooks(
            check=lambda request: self._admission_verdict(
                request, policy.refusal_reason(request.name, request.token, datetime.now(UTC), request.body)
            ),
            on_admitted=lambda request: policy.admitted_devices.record_admission(request.name, request.body),
            on_members_changed=self._on_membership,
            on_session_open=self._on_session_open,
        )

    def _start_loop(self, node: Node) -> Coroutine[Any, Any, RunOutcome]:
        self._run.node = node
        if self._run.devices is not None:
            self._run.devices.start_fault_script(node)
        self._observer.on_begin(self._run)
        store = self._run.store
        return self._prepared.build_coordinator(_InterruptibleNode(node), store, store.progress).main()

    def _admission_verdict(self, request: JoinRequest, refusal: str | None) -> str | JoinRefused:
        """The device's name, or why it may not join: what the policy says, or that it is bound to another job."""
        if refusal is None and request.digest not in ("", self._run_info.digest):
            refusal = f"{request.name} takes part in another job than this run's; restart it to join this one"
        return request.name if refusal is None else JoinRefused(reason=refusal)

    def _on_membership(self, joined: Mapping[str, int]) -> None:
        self._status.update_members(joined)
        self._observer.on_membership(self._run, joined)

    def _on_session_open(self, session: zenoh.Session, refused: RefusalReporter) -> None:
        """Devices whose certificates the transport rejects can ask why; the log says which they were."""
        admission = self._run.admission
        if admission.authority_folder is not None:
            serve_refusal_reasons(session, admission.permanent_refusal)
            report_unadmitted_links(session, admission.common_names, refused)
        self._observer.on_listening(self._run)
        self._on_membership({})


class _InterruptibleNode:
    """A node that wakes up regularly while it waits for messages, so that a request to stop is noticed."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.name = node.name
        self.incarnation = node.incarnation
        self.now, self.sleep, self.send, self.compute = node.now, node.sleep, node.send, node.compute
        self.speed, self.rng, self.record = node.speed, node.rng, node.record

    async def receive(self, until: float | None = None) -> Envelope | None:
        next_check = self.now() + _CHECK_STOP_EVERY_S
        return await self._node.receive(next_check if until is None else min(until, next_check))
