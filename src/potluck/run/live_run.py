"""Leads a live run: `serve` prepares a job, listens for devices and trains with those that join."""

from __future__ import annotations

import asyncio
import contextlib
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
from potluck.loops.node import Node
from potluck.loops.pipeline import messages as pipeline
from potluck.loops.run_progress import RunOutcome
from potluck.run.argument_checks import check_folder
from potluck.run.join_address import choose_join_locator
from potluck.run.leadership import (
    Takeover,
    check_no_leader,
    load_leadership_record,
    open_leadership,
)
from potluck.run.led_node import InterruptibleNode, ReplicatedNode
from potluck.run.live_addresses import listen_locator, uses_direct_links
from potluck.run.live_options import KeptOptions, ServeOptions, save_options
from potluck.run.live_status import LiveStatus, StatusTracker, track_live_status, write_live_status
from potluck.run.prepared_job import GivenJob, PreparedJob, load_given_job, prepare_job
from potluck.run.promotion import record_term
from potluck.run.run_opening import create_run
from potluck.run.run_result import Result, run_to_end
from potluck.run.run_store import RunStore
from potluck.run.standby_replication import StandbyReplication, standby_token
from potluck.run.storage_monitor import map_storage_errors
from potluck.task import Task
from potluck.worlds.live import wire_format
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, run_coordinator
from potluck.worlds.live.handshake_messages import JoinRefused, JoinRequest, RunInfo
from potluck.worlds.live.refusal_log import RefusalReporter
from potluck.worlds.live.security.admission_policy import AdmissionPolicy
from potluck.worlds.live.security.refusal_reasons import report_unadmitted_links, serve_refusal_reasons
from potluck.worlds.live.security.tls_credentials import TlsCredentials
from potluck.worlds.live.start_condition import StartCondition
from potluck.worlds.live.zenoh_session import Endpoint

if TYPE_CHECKING:
    from potluck.run.lab import LabDevices

__all__ = [
    "LiveObserver",
    "LiveRun",
    "LogObserver",
    "RejoiningDevices",
    "coordinator_endpoint",
    "job_digest",
    "lead_live_run",
    "open_admission",
    "prepare_live_job",
    "serve",
    "serve_prepared",
]

wire_format.register_messages(Gift, *pipeline.KINDS)

_CHECK_STORAGE_EVERY_S = 1.0
_TOKEN_HOURS = 24.0
_ON_THIS_MACHINE = ServeOptions()

_log = logging.getLogger("potluck")


@dataclass(frozen=True)
class RejoiningDevices:
    """Whom a resumed run waits for before it goes on: everyone who was here, but not for long once `least` are."""

    former: frozenset[str]
    least: int
    settle_s: float  # without another device joining


@dataclass
class LiveRun:
    """A live run, as its observer sees it."""

    store: RunStore
    admission: AdmissionPolicy
    endpoint: Endpoint
    options: KeptOptions
    rejoining: RejoiningDevices | None = None  # in a run that is resumed
    devices: LabDevices | None = None  # the processes of a lab
    node: Node | None = None  # the coordinator's, once the run has begun
    replication: StandbyReplication | None = None  # standbys and the right to commit; None in a lab

    @property
    def locator(self) -> str:
        return self.endpoint.listen[0]

    @property
    def join_locator(self) -> str:
        """Where devices are told to join: an address that the coordinator's certificate carries."""
        return choose_join_locator(self.locator, self.endpoint.tls)

    @property
    def serving(self) -> ServeOptions:
        """How devices join; a lab's devices are its own processes."""
        return self.options.serve or ServeOptions()

    @property
    def certs(self) -> Path | None:
        return self.serving.certs

    @property
    def is_deposed(self) -> bool:
        """Whether another coordinator leads the run now."""
        return self.replication is not None and self.replication.is_lost

    def issue_token(self, device: str | None = None, hours: float = _TOKEN_HOURS) -> str:
        """A join token, valid for all devices of the fleet or for one."""
        expires = datetime.now(UTC) + timedelta(hours=hours)
        return self.admission.issue_token(expires, None if device is None else [device])

    def issue_standby_token(self, hours: float = _TOKEN_HOURS) -> str:
        """What a standby needs to copy the run, where there are no certificates."""
        return standby_token(self.admission.secret, self.admission.digest, hours)


class LiveObserver(Protocol):
    """Follows a live run and may stop it; subclass it and override what is of interest."""

    def on_listening(self, run: LiveRun) -> None:
        """Devices can join."""
        _log.info("devices join at %s with the token %s", run.join_locator, run.issue_token())

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
    options: ServeOptions = _ON_THIS_MACHINE,
    observer: LiveObserver | None = None,
) -> Result:
    """Lead a live run, saved to `folder`; devices join it with `potluck.join` or `potluck join`.

    `task` replaces the one that the job names; devices then need to be given theirs, too.
    """
    listen_locator(options.listen, options.certs, options.insecure)
    folder = check_folder("folder", folder) or Path()
    watch, observer = observer.on_round if observer else None, observer or LogObserver()
    prepared = prepare_live_job(job, task, data)
    check_no_leader(options, job_digest(prepared.job))
    with create_run(prepared, folder, watch, observer.should_stop) as store:
        return serve_prepared(prepared, store, KeptOptions(serve=options, data=data), observer)


def prepare_live_job(job: GivenJob, task: Task | None, data: Path | None) -> PreparedJob:
    """Prepare a job for a run that begins."""
    job = load_given_job(job)
    if job.timing_only:
        raise UserError("timing_only: a live run always trains; use `potluck run` for timing only")
    return prepare_job(job, task, data)


def serve_prepared(
    prepared: PreparedJob,
    store: RunStore,
    kept: KeptOptions,
    observer: LiveObserver,
    rejoining: RejoiningDevices | None = None,
    takeover: Takeover | None = None,
) -> Result:
    """Lead the run of a store from its start or, with the devices that rejoin, from its checkpoint."""
    options = kept.serve
    assert options is not None
    assert store.folder is not None
    with map_storage_errors(store.folder):
        admission = open_admission(store, options.certs)
    endpoint = coordinator_endpoint(prepared, admission.access_control(), options)
    run, digest = LiveRun(store, admission, endpoint, kept, rejoining), job_digest(prepared.job)
    record = load_leadership_record(store.folder)
    if takeover is None:
        takeover = Takeover(open_leadership(record, options, digest, run.join_locator))
    leadership = takeover.leadership
    try:
        with map_storage_errors(store.folder):
            record_term(store.folder, record, leadership.term)
        run.replication = StandbyReplication(store.folder, record, leadership, admission, digest)
        run.replication.wait_s = options.standby_wait_s
        run.replication.server.options = options.of_the_run()
        run.replication.addresses = [run.join_locator, *takeover.former_addresses]
        return lead_live_run(prepared, run, observer)
    finally:
        if run.replication is not None:
            run.replication.server.close()
        leadership.release()


def coordinator_endpoint(
    prepared: PreparedJob, access_control: Mapping[str, Any] | None, options: ServeOptions
) -> Endpoint:
    """Where a coordinator listens, and whom it lets send what."""
    job, certs = prepared.job, options.certs
    locator = listen_locator(options.listen, certs, options.insecure)
    tls = None if certs is None else TlsCredentials.from_bundle(certs / "coordinator")
    if tls is not None:
        tls.check_files()
        choose_join_locator(locator, tls)
    return Endpoint(
        listen=(locator,),
        tls=tls,
        access_control=None if access_control is None else dict(access_control),
        lease=float(job.fleet.lease),
        direct=uses_direct_links(job),
        discover=options.discover,
        shared_memory=options.shared_memory,
        limit_connections=True,
    )


def open_admission(store: RunStore, certs: Path | None = None) -> AdmissionPolicy:
    """Who may join a run. Tokens belong to the run, not to its settings: they remain valid when it is resumed."""
    assert store.folder is not None, "a live run has a folder, which holds the keys of its tokens"
    names = [device.name for device in store.job.fleet.members]
    return AdmissionPolicy.for_run(store.folder, load_leadership_record(store.folder).run, names, certs)


def lead_live_run(prepared: PreparedJob, run: LiveRun, observer: LiveObserver) -> Result:
    """Coordinate a live run to its end."""
    store = run.store
    assert store.folder is not None
    status = LiveStatus.for_this_process(run.locator, run.certs)
    status.lab = run.devices is not None
    if run.replication is not None:
        status.term, status.run = run.replication.term, run.admission.digest
        status.coordinator = run.replication.coordinator
    with map_storage_errors(store.folder):
        save_options(store.folder, run.options)
        write_live_status(store.folder, status)
    store.save_every_round()
    store.outlive_outages()
    names = [device.name for device in prepared.job.fleet.members]
    with track_live_status(StatusTracker(store.folder, status, names, store.storage)) as tracker:
        leading = _LiveCoordinator(prepared, run, observer, tracker)
        if run.replication is not None:
            store.guard = run.replication
            run.replication.on_standbys = tracker.update_standbys
        return run_to_end(prepared, store, lambda: asyncio.run(leading.coordinate()))


class _LiveCoordinator:
    """What the live world asks of a run."""

    def __init__(self, prepared: PreparedJob, run: LiveRun, observer: LiveObserver, status: StatusTracker) -> None:
        self._prepared = prepared
        self._run = run
        self._observer = observer
        self._status = status
        job, admission = prepared.job, run.admission
        self.term = 0 if run.replication is None else run.replication.term
        assert run.store.folder is not None
        self._run_info = RunInfo(
            run=admission.digest,
            term=self.term,
            job=dump_job(job),
            digest=job_digest(job),
            model=prepared.model_digest,
            frozen=prepared.frozen.digest(),
            lease=float(job.fleet.lease),
            limit_bytes=prepared.max_message_bytes,
            common_names=admission.common_names if admission.authority_folder is not None else {},
        )

    async def coordinate(self) -> RunOutcome:
        watching = asyncio.create_task(self._watch_storage())
        try:
            return await self._run_coordinator()
        finally:
            watching.cancel()

    async def _watch_storage(self) -> None:
        """While the run's folder cannot be written, try again regularly."""
        while True:
            await asyncio.sleep(_CHECK_STORAGE_EVERY_S)
            self._run.store.catch_up()
            self._status.catch_up()
            with contextlib.suppress(OSError):  # the log said so when the device joined
                self._run.admission.admitted_devices.save()

    async def _run_coordinator(self) -> RunOutcome:
        run, job = self._run, self._prepared.job
        return await run_coordinator(
            run.endpoint,
            CoordinatedRun(
                info=self._run_info,
                seed=job.seed,
                journal=run.store.journal,
                start_s=run.store.start_s,
                fleet=job.fleet if run.options.lab is not None and run.options.lab.emulate_fleet else None,
                coordinators=list if run.replication is None else run.replication.coordinators,
            ),
            self._start_loop,
            self._admission_hooks(),
            self._start_condition(),
        )

    def _start_condition(self) -> StartCondition:
        run, job, back = self._run, self._prepared.job, self._run.rejoining
        return StartCondition(
            devices=[device.name for device in job.fleet.members],
            timeout_s=run.serving.wait_s if run.options.lab is None else run.options.lab.wait_s,
            start_now=lambda: run.store.interrupt_outcome() is not None or run.is_deposed,
            former=back.former if back is not None else frozenset(),
            least=back.least if back is not None else None,
            settle_s=back.settle_s if back is not None else 0.0,
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
        return self._lead(node)

    async def _lead(self, node: Node) -> RunOutcome:
        store, replication = self._run.store, self._run.replication
        led_node = InterruptibleNode(node) if replication is None else ReplicatedNode(node, replication)
        main = self._prepared.build_coordinator(led_node, store, store.progress).main()
        try:
            return await (main if replication is None else replication.lead(main, store))
        finally:
            self._status.remember_members()

    def _admission_verdict(self, request: JoinRequest, refusal: str | None) -> str | JoinRefused:
        """The device's name, or why it may not join: what the policy says, or that it is bound to another job."""
        if refusal is None and request.digest not in ("", self._run_info.digest):
            refusal = f"{request.name} takes part in another job than this run's; restart it to join this one"
        return request.name if refusal is None else JoinRefused(reason=refusal)

    def _on_membership(self, joined: Mapping[str, int]) -> None:
        self._status.update_members(joined)
        if self._run.replication is not None and not self._run.is_deposed:  # then it sends its devices away
            self._run.replication.server.members = dict(joined)
        self._observer.on_membership(self._run, joined)

    def _on_session_open(self, session: zenoh.Session, refused: RefusalReporter) -> None:
        """Devices whose certificates the transport rejects can ask why; the log says which they were."""
        admission = self._run.admission
        if admission.authority_folder is not None:
            serve_refusal_reasons(session, admission.permanent_refusal)
            report_unadmitted_links(session, admission.common_names, refused)
        if self._run.replication is not None:
            self._run.replication.server.serve_requests(session)
        self._observer.on_listening(self._run)
        self._on_membership({})
