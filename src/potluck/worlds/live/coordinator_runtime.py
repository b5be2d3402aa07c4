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
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import zenoh
from zenoh.handlers import Callback

from potluck.journal import JournalRecord
from potluck.loops.messages import Joined, Lost, Message, Stop
from potluck.loops.node import COORDINATOR, Envelope, Node
from potluck.worlds.device_error import DeviceError
from potluck.worlds.live import key_expressions, membership
from potluck.worlds.live.admission_server import AdmissionServer, serve_clock
from potluck.worlds.live.callback_guard import guard_callback
from potluck.worlds.live.compute_speed import MeasuredSpeed
from potluck.worlds.live.connections.connection_limiter import ConnectionLimiter, open_limited_session
from potluck.worlds.live.control_messages import (
    ControlMessage,
    CoordinatorHeartbeat,
    Coordinators,
    DeviceHeartbeat,
    ExpelNotice,
    JournalBatch,
    LeaveNotice,
    Roster,
    RunEnded,
    RunStarted,
    TransferDeclined,
)
from potluck.worlds.live.coordinated_run import AdmissionHooks, CoordinatedRun, MembersChanged
from potluck.worlds.live.device_records import DeviceRecords
from potluck.worlds.live.expulsion import Expulsions
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRefused
from potluck.worlds.live.inbound_frames import CONTROL_LIMIT, FLOOD
from potluck.worlds.live.leadership_lost import LeadershipLostError
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
from potluck.worlds.live.rate_limits import RateLimit, RateLimiter
from potluck.worlds.live.refusal_log import RefusalLog
from potluck.worlds.live.run_clock import RunClock
from potluck.worlds.live.standby_announcement import announce_coordinators
from potluck.worlds.live.start_condition import StartCondition
from potluck.worlds.live.zenoh_session import Endpoint

__all__ = ["AdmissionHooks", "CoordinatedRun", "MembersChanged", "run_coordinator"]

T = TypeVar("T")

_LEAVE_TIMEOUT_S = 1.0
_ROSTER_INTERVAL_S = 1.0
_START_POLL_S = 0.25
_CONTACTS = RateLimit(per_s=20.0, burst=1.0)  # of one device that are noted; the rest would tell nothing new
_BROKEN_CONNECTIONS = RateLimit(per_s=20.0, burst=40.0)  # of one device

_log = logging.getLogger("potluck")


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
    session, limiter = await open_limited_session(endpoint)
    runtime = _CoordinatorRuntime(session, endpoint, run, admission)
    runtime.limiter = limiter
    reason = "the run was interrupted"
    try:
        await asyncio.to_thread(admission.on_session_open, session, runtime.report_refusal)
        await runtime.open()
        await runtime.wait_for_devices(start)
        runtime.start_run()
        result = await runtime.lead_run(coordinate)
        reason = "the run is over"
        return result
    except LeadershipLostError as error:
        runtime.expel_devices(str(error))
        raise
    finally:
        await runtime.close(reason)
        if limiter is not None:
            await asyncio.to_thread(limiter.close)


class _CoordinatorRuntime(NodeOwner):
    def __init__(
        self, session: zenoh.Session, endpoint: Endpoint, run: CoordinatedRun, admission: AdmissionHooks
    ) -> None:
        self._session = session
        self.limiter: ConnectionLimiter | None = None
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
        self._device_records = DeviceRecords(run.journal.write_record, self._clock.now)
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
        senders, mailbox = self.node_runtime.sender_filter, self.node_runtime.mailbox
        self._expulsions = Expulsions(session, run.info.common_names, senders, mailbox.send_control)
        self._contacts, self._broken_connections = RateLimiter(_CONTACTS), RateLimiter(_BROKEN_CONNECTIONS)

    async def open(self) -> None:
        self.node_runtime.open()
        await asyncio.to_thread(self._declare_keys)
        periodic = (
            self._tick_membership(),
            self._resend_roster(),
            announce_coordinators(self._run.coordinators, self._tell_devices),
        )
        self._tasks = [asyncio.create_task(task) for task in periodic]

    def _declare_keys(self) -> None:
        session, era = self._session, self._era
        self._admission_server.serve_requests(session)
        serve_clock(session, era, self._expulsions.remember_session)
        self._expulsions.watch_links()
        liveliness = session.liveliness()
        liveliness.declare_subscriber(
            key_expressions.liveliness_key(era, key_expressions.ANY, key_expressions.ANY),
            Callback(guard_callback(self._on_liveliness), indirect=False),
        )
        self._liveliness_token = liveliness.declare_token(key_expressions.liveliness_key(era, COORDINATOR, 0))

    async def wait_for_devices(self, start: StartCondition) -> None:
        """Wait until the run can start."""
        began = changed_at = time.monotonic()
        joined: set[str] = set()
        while not (
            start.is_met(joined, time.monotonic() - changed_at)
            or start.start_now()
            or self._device_error is not None
            or time.monotonic() >= began + start.timeout_s
        ):
            self._changed.clear()
            pause = min(_START_POLL_S, max(began + start.timeout_s - time.monotonic(), 0.0))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), pause)
            if joined != self._membership.ready_devices().keys():
                joined, changed_at = set(self._membership.ready_devices()), time.monotonic()
        missing = set(start.devices) - joined
        if missing and not start.start_now() and self._device_error is None:
            waited_s, names = time.monotonic() - began, ", ".join(sorted(missing))
            _log.warning("the run starts without %s: not connected after %.1f s", names, waited_s)

    def start_run(self) -> None:
        self._tell_devices(RunStarted(self._clock.start_now()))

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

    def expel_devices(self, reason: str) -> None:
        """Let all devices look for the coordinator that leads now."""
        self._closing_reason = reason
        for name, incarnation in self._membership.ready_devices().items():
            self.node_runtime.mailbox.send_control(name, ExpelNotice(incarnation, reason), incarnation)
            self._apply_event(DeviceLeft(name, incarnation, reason))

    async def close(self, reason: str) -> None:
        """Tell all devices that the run has ended, wait briefly for them to leave, and close."""
        self._closing_reason = self._closing_reason or reason
        self._tell_devices(Stop())
        self._tell_devices(RunEnded(reason))
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
            self._expulsions.offence_log.flush(at_once=True)
            await self.node_runtime.close()

    def _admit_device(self, name: str, process_secret: str) -> JoinAccepted | JoinRefused:
        """Admit a device as a new incarnation, unless it has to wait."""
        if self._closing_reason:
            return JoinRefused(reason=self._closing_reason, retry_s=2.0)
        deferred = membership.check_join_deferral(time.monotonic(), self._membership, name, process_secret, self._rules)
        if deferred is not None:
            return JoinRefused(reason=deferred.reason, retry_s=deferred.retry_s)
        self._apply_event(DeviceAdmitted(name, process_secret))
        self._expulsions.readmit(name)
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
            frozen=info.frozen,
            seed=self._run.seed,
            lease=info.lease,
            limit_bytes=info.limit_bytes,
            shaped=self._run.fleet is not None,
            direct=self._direct,
            bears=info.common_names if self._direct else {},
            zero=self._clock.start_time,
            term=info.term,
            coordinators=self._run.coordinators(),
        )

    def report_refusal(self, device: str, address: str, reason: str) -> None:
        """Log that a device was refused; called from any thread."""
        if self.limiter is not None:
            address = self.limiter.public_address(address)
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
        if self._contacts.take(name, time.monotonic()):
            with contextlib.suppress(RuntimeError):  # the event loop is closed: the run has ended
                self._loop.call_soon_threadsafe(self._apply_event, DeviceHeard(name, incarnation))

    def on_stale_incarnation(self, name: str, incarnation: int) -> None:
        self._expulsions.tell_lost(name, incarnation)

    def on_protocol_violation(self, name: str, incarnation: int | None, reason: str) -> None:
        self._expulsions.log_offence(name, f"{name} sent an invalid message: {reason}")
        current = self._membership.incarnation_of(name)
        if not current:
            return
        self.node_runtime.mailbox.send_control(name, TransferDeclined(0, reason), current)
        self._apply_event(ProtocolViolated(name, current if incarnation is None else incarnation, reason))
        if not self._membership.incarnation_of(name):
            self._expulsions.expel(name, current, self._membership.quarantine_s(name, time.monotonic()), reason)

    def on_excess(self, name: str, count: int) -> None:
        if self._membership.incarnation_of(name):
            for _ in range(self._rules.max_violations if count >= FLOOD else 1):
                self.on_protocol_violation(name, None, f"more than {CONTROL_LIMIT.per_s:g} messages a second")
        else:
            self._expulsions.on_flood(name, count)

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
                offence = self._device_records.add_batch(sender, records)
                if offence is not None:
                    self.on_protocol_violation(sender, incarnation, offence)

    # --- membership ------------------------------------------------------------------------------------------------

    def _on_liveliness(self, sample: zenoh.Sample) -> None:
        """A liveliness token was declared or dropped; called from one of Zenoh's threads."""
        device = key_expressions.parse_liveliness_key(str(sample.key_expr))
        if device is None or sample.kind != zenoh.SampleKind.DELETE or self._conditions.is_cut(device[0]):
            return
        if self._broken_connections.take(device[0], time.monotonic()):
            # After what it sent before: its last records are in that.
            self.node_runtime.mailbox.inbound.put(device[0], partial(self._apply_event, ConnectionBroken(*device)))

    async def _tick_membership(self) -> None:
        while True:
            await asyncio.sleep(self._rules.lease / 10)
            self._apply_event(LeaseTick())
            self._expulsions.offence_log.flush()

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
            coordinators = Coordinators(self._run.coordinators())  # they may have changed since it was accepted
            self.node_runtime.mailbox.send_control(notice.device, coordinators, notice.incarnation)
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
        self._tell_devices(Roster(self._membership.epoch, self._membership.ready_devices()))

    def _tell_devices(self, message: ControlMessage | Message) -> None:
        for name, incarnation in self._membership.ready_devices().items():
            self.node_runtime.mailbox.send_control(name, message, incarnation)
