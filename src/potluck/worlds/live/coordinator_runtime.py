"""The coordinator's side of a live run: admits devices, tracks membership and runs the loop that leads.

join requests ────────────────────────▶ AdmissionServer ──▶ JoinAccepted or JoinRefused
liveliness, heartbeats, leave notices ▶ membership (pure) ──▶ Joined, Lost ──▶ the loop's inbox
devices' journal records ─────────────▶ journal
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import zenoh
from zenoh.handlers import Callback

from potluck.fleet import Fleet
from potluck.journal import Journal, JournalRecord
from potluck.loops.messages import Joined, Lost, Stop
from potluck.loops.node import COORDINATOR, Envelope, Node
from potluck.worlds.device_error import DeviceError
from potluck.worlds.live import key_expressions, membership
from potluck.worlds.live.admission_server import AdmissionCheck, AdmissionServer, serve_clock
from potluck.worlds.live.compute_speed import MeasuredSpeed
from potluck.worlds.live.control_messages import (
    ControlMessage,
    CoordinatorHeartbeat,
    DeviceHeartbeat,
    ExpelNotice,
    JournalBatch,
    LeaveNotice,
    Roster,
    RunEnded,
    RunStarted,
    TransferDeclined,
)
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRefused, JoinRequest, RunInfo
from potluck.worlds.live.journal_forwarding import is_valid_record
from potluck.worlds.live.link_shaping import LinkConditions, ShapedLinks
from potluck.worlds.live.membership import (
    ConnectionBroken,
    DeviceAdmitted,
    DeviceHeard,
    DeviceLeft,
    DeviceReady,
    Event,
    LeaseTick,
    MembershipRules,
    MembershipState,
    ProtocolViolated,
)
from potluck.worlds.live.node_runtime import NodeOwner, NodeRuntime
from potluck.worlds.live.peer_directory import NodeIdentity
from potluck.worlds.live.refusal_log import RefusalLog, RefusalReporter
from potluck.worlds.live.run_clock import RunClock
from potluck.worlds.live.zenoh_session import Endpoint, open_session_in_thread

__all__ = ["AdmissionHooks", "CoordinatedRun", "MembersChanged", "StartCondition", "run_coordinator"]

T = TypeVar("T")
MembersChanged = Callable[[Mapping[str, int]], None]  # device → incarnation of all that are ready

_LEAVE_TIMEOUT_S = 1.0
_ROSTER_INTERVAL_S = 1.0
_START_POLL_S = 0.25

_log = logging.getLogger("potluck")


@dataclass(frozen=True, kw_only=True)
class CoordinatedRun:
    """The run that a coordinator leads."""

    info: RunInfo
    seed: int
    journal: Journal
    start_s: float = 0.0  # where the run's clock starts; above 0 in a resumed run
    fleet: Fleet | None = None  # emulate the links and faults of this fleet


@dataclass(frozen=True, kw_only=True)
class AdmissionHooks:
    """Who may join a run, and what to call when devices come and go."""

    check: AdmissionCheck
    on_admitted: Callable[[JoinRequest], None] = lambda request: None
    on_members_changed: MembersChanged = lambda members: None
    # Called in a thread once the session is open; may declare more on it and report the refusals that it causes.
    on_session_open: Callable[[zenoh.Session, RefusalReporter], None] = lambda session, report_refusal: None


@dataclass(frozen=True, kw_only=True)
class StartCondition:
    """When a run starts: once all `devices` have joined, after `timeout_s`, or as soon as `start_now` returns True."""

    devices: Collection[str] = ()
    timeout_s: float = 60.0
    start_now: Callable[[], bool] = lambda: False


_AT_ONCE = StartCondition()


async def run_coordinator(
    endpoint: Endpoint,
    run: CoordinatedRun,
    coordinate: Callable[[Node], Coroutine[Any, Any, T]],
    admission: AdmissionHooks,
    start: StartCondition = _AT_ONCE,
) -> T:
    """Lead a run at `endpoint` until `coordinate` returns, and return its result.

    All refusals, those of `admission.on_session_open` included, are logged and written to the journal.
    """
    session = await open_session_in_thread(endpoint, "router")
    runtime = _CoordinatorRuntime(session, endpoint, run, admission)
    reason = "the run was interrupted"
    try:
        await asyncio.to_thread(admission.on_session_open, session, runtime.report_refusal)
        await runtime.open()
        await runtime.wait_for_devices(start)
        runtime.start_run()
        result = await runtime.lead_run(coordinate)
        reason = "the run is over"
        return result
    finally:
        await runtime.close(reason)


class _CoordinatorRuntime(NodeOwner):
    def __init__(
        self, session: zenoh.Session, endpoint: Endpoint, run: CoordinatedRun, admission: AdmissionHooks
    ) -> None:
        self._session = session
        self._run = run
        self._direct = endpoint.direct
        self._era = f"{run.info.run}.{secrets.token_hex(4)}"
        self._clock = RunClock(run.start_s)
        self._conditions = (
            LinkConditions() if run.fleet is None else ShapedLinks(run.fleet, run.seed, COORDINATOR, self._clock.now)
        )
        self._admission_server = AdmissionServer(
            admission.check, self._admit_device, self._conditions.is_cut, admission.on_admitted, self.report_refusal
        )
        self._on_members_changed = admission.on_members_changed
        self._refusal_log = RefusalLog(run.journal.write_record, self._clock.now)
        self._membership = MembershipState()
        self._rules = MembershipRules(lease=run.info.lease)
        self._changed = asyncio.Event()
        self._closing_reason = ""
        self._code_errors: dict[str, DeviceError] = {}
        self._device_error: DeviceError | None = None
        self._leading: asyncio.Future[Any] | None = None
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        identity = NodeIdentity(
            name=COORDINATOR, incarnation=0, era=self._era, seed=run.seed, lease=run.info.lease,
            limit_bytes=run.info.limit_bytes,
        )  # fmt: skip
        self.node_runtime = NodeRuntime(session, identity, self._clock, MeasuredSpeed(), self._conditions, self)

    async def open(self) -> None:
        self.node_runtime.open()
        await asyncio.to_thread(self._declare_keys)
        self._tasks = [asyncio.create_task(self._tick_membership()), asyncio.create_task(self._resend_roster())]

    def _declare_keys(self) -> None:
        session, era = self._session, self._era
        self._admission_server.serve_requests(session)
        serve_clock(session, era)
        liveliness = session.liveliness()
        liveliness.declare_subscriber(
            key_expressions.liveliness_key(era, key_expressions.ANY, key_expressions.ANY),
            Callback(self._on_liveliness, indirect=False),
        )
        self._liveliness_token = liveliness.declare_token(key_expressions.liveliness_key(era, COORDINATOR, 0))

    async def wait_for_devices(self, start: StartCondition) -> None:
        """Wait until the run can start."""
        wanted, until = set(start.devices), time.monotonic() + start.timeout_s
        while not (
            wanted <= self._membership.ready_devices().keys()
            or start.start_now()
            or self._device_error is not None
            or time.monotonic() >= until
        ):
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(_START_POLL_S, max(until - time.monotonic(), 0.0)))
        missing = wanted - self._membership.ready_devices().keys()
        if missing and not start.start_now() and self._device_error is None:
            names = ", ".join(sorted(missing))
            _log.warning("the run starts without %s: not connected after %g s", names, start.timeout_s)

    def start_run(self) -> None:
        start_time = self._clock.start_now()
        for name, incarnation in self._membership.ready_devices().items():
            self.node_runtime.mailbox.send_control(name, RunStarted(start_time), incarnation)

    async def lead_run(self, coordinate: Callable[[Node], Coroutine[Any, Any, T]]) -> T:
        """Run the coordinator's loop; raises DeviceError when code that all devices run has failed on most."""
        if self._device_error is None:
            self._leading = leading = asyncio.ensure_future(coordinate(self.node_runtime.node))
            try:
                return await leading
            except asyncio.CancelledError:
                if self._device_error is None:
                    raise
        raise self._device_error

    def _record_code_error(self, error: DeviceError) -> None:
        """End the run once the common code has failed on most devices; a single one could be broken or hostile."""
        self._code_errors.setdefault(error.device, error)
        working = self._membership.members.keys() - self._code_errors.keys()
        if len(self._code_errors) <= len(working):
            return
        self._device_error = self._device_error or next(iter(self._code_errors.values()))
        self._changed.set()
        if self._leading is not None:
            self._leading.cancel()

    async def close(self, reason: str) -> None:
        """Tell all devices that the run has ended, wait briefly for them to leave, and close."""
        self._closing_reason = reason
        for name, incarnation in self._membership.ready_devices().items():
            self.node_runtime.mailbox.send_control(name, Stop(), incarnation)
            self.node_runtime.mailbox.send_control(name, RunEnded(reason), incarnation)
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                while self._membership.ready_devices():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            _log.debug("no leave notice from %s", ", ".join(self._membership.ready_devices()))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.node_runtime.close()

    def _admit_device(self, name: str, process_secret: str) -> JoinAccepted | JoinRefused:
        """Admit a device as a new incarnation, unless it has to wait."""
        if self._closing_reason:
            return JoinRefused(reason=self._closing_reason, retry_s=2.0)
        deferred = membership.check_join_deferral(time.monotonic(), self._membership, name, process_secret, self._rules)
        if deferred is not None:
            return JoinRefused(reason=deferred.reason, retry_s=deferred.retry_s)
        self._apply_event(DeviceAdmitted(name, process_secret))
        return self._build_join_accepted(name)

    def _build_join_accepted(self, name: str) -> JoinAccepted:
        info = self._run.info
        return JoinAccepted(
            run=info.run,
            era=self._era,
            name=name,
            incarnation=self._membership.incarnation_of(name),
            job=info.job,
            digest=info.digest,
            model=info.model,
            seed=self._run.seed,
            lease=info.lease,
            limit_bytes=info.limit_bytes,
            shaped=self._run.fleet is not None,
            direct=self._direct,
            bears=info.common_names if self._direct else {},
            zero=self._clock.start_time,
        )

    def report_refusal(self, device: str, address: str, reason: str) -> None:
        """Log that a device was refused; called from any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed: the run has ended
            self._loop.call_soon_threadsafe(self._refusal_log, device, address, reason)

    # --- NodeOwner -------------------------------------------------------------------------------------------------

    def write_record(self, record: JournalRecord) -> None:
        self._run.journal.write_record(record)

    def make_heartbeat(self) -> ControlMessage:
        return CoordinatorHeartbeat(self._membership.epoch)

    def incarnation_of(self, name: str) -> int | None:
        return self._membership.incarnation_of(name) or None

    def record_contact(self, name: str, incarnation: int) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: the run has ended
            self._loop.call_soon_threadsafe(self._apply_event, DeviceHeard(name, incarnation))

    def on_stale_incarnation(self, name: str, incarnation: int) -> None:
        self.node_runtime.mailbox.send_control(
            name, ExpelNotice(incarnation, "the coordinator considers it lost"), incarnation
        )

    def on_protocol_violation(self, name: str, incarnation: int | None, reason: str) -> None:
        _log.warning("%s sent an invalid message: %s", name, reason)
        current = self._membership.incarnation_of(name)
        self.node_runtime.mailbox.send_control(name, TransferDeclined(0, reason), current)
        self._apply_event(ProtocolViolated(name, current if incarnation is None else incarnation, reason))

    def handle_control(self, sender: str, incarnation: int, message: ControlMessage) -> None:
        match message:
            case DeviceHeartbeat(ready=True):
                self._apply_event(DeviceReady(sender, incarnation))
            case LeaveNotice(reason=reason, failed=failed, trace=trace):
                is_current = self._membership.incarnation_of(sender) == incarnation
                self._apply_event(DeviceLeft(sender, incarnation, reason, failed))
                if trace and is_current:
                    self._record_code_error(DeviceError(sender, reason.removeprefix("failed: "), trace))
            case JournalBatch(records=records):
                for record in records:
                    if is_valid_record(record, sender):
                        self._run.journal.write_record(record)

    # --- membership ------------------------------------------------------------------------------------------------

    def _on_liveliness(self, sample: zenoh.Sample) -> None:
        """A liveliness token was declared or dropped; called from one of Zenoh's threads."""
        device = key_expressions.parse_liveliness_key(str(sample.key_expr))
        if device is not None and sample.kind == zenoh.SampleKind.DELETE and not self._conditions.is_cut(device[0]):
            with contextlib.suppress(RuntimeError):  # the event loop is closed: the run has ended
                self._loop.call_soon_threadsafe(self._apply_event, ConnectionBroken(*device))

    async def _tick_membership(self) -> None:
        while True:
            await asyncio.sleep(self._rules.lease / 10)
            self._apply_event(LeaseTick())

    def _apply_event(self, event: Event) -> None:
        self._membership, notices = membership.apply_event(time.monotonic(), self._membership, event, self._rules)
        for notice in notices:
            self._announce_change(notice)
        if notices:
            members = self._membership.ready_devices()
            self.node_runtime.heartbeat.set_recipients(members)
            self._on_members_changed(members)
            self._changed.set()
            if self._direct:
                self._send_roster()

    def _announce_change(self, notice: Joined | Lost) -> None:
        if isinstance(notice, Lost):
            level = logging.WARNING if notice.reason.startswith("failed: ") else logging.INFO
            _log.log(level, "lost %s (incarnation %d): %s", notice.device, notice.incarnation, notice.reason)
            self.node_runtime.mailbox.drop_peer(notice.device)
        else:
            _log.info("%s joined (incarnation %d)", notice.device, notice.incarnation)
            if self._clock.start_time is not None:
                self.node_runtime.mailbox.send_control(
                    notice.device, RunStarted(self._clock.start_time), notice.incarnation
                )
        self.node_runtime.node.deliver(Envelope(COORDINATOR, 0, notice))

    async def _resend_roster(self) -> None:
        """Repeat the roster periodically for devices that missed it."""
        while self._direct:
            await asyncio.sleep(_ROSTER_INTERVAL_S)
            self._send_roster()

    def _send_roster(self) -> None:
        members = self._membership.ready_devices()
        for name, incarnation in members.items():
            self.node_runtime.mailbox.send_control(name, Roster(self._membership.epoch, members), incarnation)
