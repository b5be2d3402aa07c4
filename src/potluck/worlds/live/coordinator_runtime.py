"""The coordinator's side of a live run: the door, the roll of who is here, and the loop that leads.

door ──Hello──▶ welcome? ──▶ Welcome or Refusal
tokens, beats, goodbyes ──▶ membership (pure) ──▶ Joined, Lost ──▶ the loop's mailbox
records of devices ──▶ journal
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, TypeVar

import zenoh
from zenoh.handlers import Callback

from potluck.fleet import Fleet
from potluck.journal import Journal
from potluck.loops.messages import Joined, Lost, Stop
from potluck.loops.node import COORDINATOR, Envelope, Node
from potluck.worlds.device_error import DeviceError
from potluck.worlds.live import key_expressions, membership
from potluck.worlds.live.admission_server import AdmissionServer, Doorkeeper, serve_clock
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
from potluck.worlds.live.node_runtime import NodeIdentity, NodeRuntime
from potluck.worlds.live.peer_directory import PeerDirectory
from potluck.worlds.live.refusal_log import RefusalLog, Refused
from potluck.worlds.live.run_clock import RunClock
from potluck.worlds.live.zenoh_session import Endpoint, open_session_in_thread

__all__ = ["Doorkeeper", "Watch", "run_coordinator"]

T = TypeVar("T")
Watch = Callable[[Mapping[str, int]], None]

_FAREWELL_S = 1.0
_ROSTER_EVERY_S = 1.0
_LOOK_EVERY_S = 0.25  # whether to hurry

_log = logging.getLogger("potluck")


async def run_coordinator(
    place: Endpoint,
    *,
    run: RunInfo,
    seed: int,
    journal: Journal,
    coordinate: Callable[[Node], Coroutine[Any, Any, T]],
    welcome: Doorkeeper,
    admitted: Callable[[JoinRequest], None] = lambda hello: None,
    watch: Watch = lambda here: None,
    began_s: float = 0.0,
    fleet: Fleet | None = None,
    muster: Collection[str] = (),
    muster_s: float = 60.0,
    hurry: Callable[[], bool] = lambda: False,
    opened: Callable[[zenoh.Session, Refused], None] = lambda session, refused: None,
) -> T:
    """Lead a run at `place` until `coordinate` returns, and give back what it returns.

    `welcome` says what a device that knocks is to be called, or refuses it; `admitted` is told whom the door was opened
    to, `watch` whenever someone comes or goes (name → incarnation). The run's clock starts at `began_s`, once all of
    `muster` are here, `muster_s` seconds are over or `hurry` says so. Where `fleet` is given, its links and faults are
    acted out. `opened` may add to the session what concerns no run, such as answers to those who are kept out, and say
    whom it refused; all refusals are logged and in the journal.
    """
    session = await open_session_in_thread(place, "router")
    hosting = _CoordinatorRuntime(session, place, run, seed, journal, welcome, admitted, watch, began_s, fleet)
    reason = "the run was broken off"
    try:
        await asyncio.to_thread(opened, session, hosting.report_refusal)
        await hosting.open()
        await hosting.wait_for_devices(set(muster), muster_s, hurry)
        hosting.start_run()
        result = await hosting.lead_run(coordinate)
        reason = "the run is over"
        return result
    finally:
        await hosting.close(reason)


class _CoordinatorRuntime(PeerDirectory):
    def __init__(
        self,
        session: zenoh.Session,
        place: Endpoint,
        card: RunInfo,
        seed: int,
        journal: Journal,
        welcome: Doorkeeper,
        admitted: Callable[[JoinRequest], None],
        watch: Watch,
        began_s: float,
        fleet: Fleet | None,
    ) -> None:
        self._session = session
        self._run_info = card
        self._seed = seed
        self._journal = journal
        self._admission_server = AdmissionServer(
            welcome, self._admit_device, lambda name: self._conditions.is_cut(name), admitted, self.report_refusal
        )
        self._on_members_changed = watch
        self._shaped = fleet is not None
        self._direct = place.direct
        self._era = f"{card.run}.{secrets.token_hex(4)}"
        self._clock = RunClock(began_s)
        self._conditions = LinkConditions() if fleet is None else ShapedLinks(fleet, seed, COORDINATOR, self._clock.now)
        self._refusal_log = RefusalLog(journal.write_record, self._clock.now)
        self._membership = MembershipState()
        self._rules = MembershipRules(lease=card.lease)
        self._changed = asyncio.Event()
        self._closing_reason = ""
        self._device_error: DeviceError | None = None
        self._leading: asyncio.Future[Any] | None = None
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        who = NodeIdentity(
            name=COORDINATOR, incarnation=0, era=self._era, seed=seed, lease=card.lease, limit_bytes=card.limit_bytes
        )
        self.node_runtime = NodeRuntime(
            session,
            who,
            self._clock,
            MeasuredSpeed(),
            self._conditions,
            self,
            record=journal.write_record,
            take_note=self._handle_control,
            beat=lambda: CoordinatorHeartbeat(self._membership.epoch),
            before_last=_do_nothing,
        )

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

    async def wait_for_devices(self, wanted: set[str], seconds: float, hurry: Callable[[], bool]) -> None:
        """Wait for the fleet."""
        until = time.monotonic() + seconds
        while not (
            wanted <= self._membership.ready_devices().keys()
            or hurry()
            or self._device_error is not None
            or time.monotonic() >= until
        ):
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(_LOOK_EVERY_S, max(until - time.monotonic(), 0.0)))
        missing = wanted - self._membership.ready_devices().keys()
        if missing and not hurry() and self._device_error is None:
            _log.warning("the run begins without %s: not here after %g s", ", ".join(sorted(missing)), seconds)

    def start_run(self) -> None:
        zero = self._clock.start_now()
        for name, life in self._membership.ready_devices().items():
            self.node_runtime.mailbox.send_control(name, RunStarted(zero), life)

    async def lead_run(self, coordinate: Callable[[Node], Coroutine[Any, Any, T]]) -> T:
        """Run the coordinator's loop; raises DeviceError as soon as code that all devices run has failed on one."""
        if self._device_error is None:
            self._leading = leading = asyncio.ensure_future(coordinate(self.node_runtime.node))
            try:
                return await leading
            except asyncio.CancelledError:
                if self._device_error is None:
                    raise
        raise self._device_error

    def _fail_run(self, error: DeviceError) -> None:
        self._device_error = self._device_error or error
        self._changed.set()
        if self._leading is not None:
            self._leading.cancel()

    async def close(self, reason: str) -> None:
        """Tell everybody, wait a moment for their goodbyes, and leave."""
        self._closing_reason = reason
        for name, life in self._membership.ready_devices().items():
            self.node_runtime.mailbox.send_control(name, Stop(), life)
            self.node_runtime.mailbox.send_control(name, RunEnded(reason), life)
        try:
            async with asyncio.timeout(_FAREWELL_S):
                while self._membership.ready_devices():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            _log.debug("no goodbye from %s", ", ".join(self._membership.ready_devices()))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.node_runtime.close()

    def _admit_device(self, name: str, body: str) -> JoinAccepted | JoinRefused:
        """Let a device in as a new life, unless it has to wait."""
        if self._closing_reason:
            return JoinRefused(reason=self._closing_reason, retry_s=2.0)
        turned = membership.check_join_deferral(time.monotonic(), self._membership, name, body, self._rules)
        if turned is not None:
            return JoinRefused(reason=turned.reason, retry_s=turned.retry_s)
        self._apply_event(DeviceAdmitted(name, body))
        return self._build_join_accepted(name)

    def _build_join_accepted(self, name: str) -> JoinAccepted:
        card = self._run_info
        return JoinAccepted(
            run=card.run,
            era=self._era,
            name=name,
            incarnation=self._membership.incarnation_of(name),
            job=card.job,
            digest=card.digest,
            model=card.model,
            seed=self._seed,
            lease=card.lease,
            limit_bytes=card.limit_bytes,
            shaped=self._shaped,
            direct=self._direct,
            bears=card.bears if self._direct else {},
            zero=self._clock.start_time,
        )

    def report_refusal(self, who: str, where: str, why: str) -> None:
        """Somebody was turned away; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so are we
            self._loop.call_soon_threadsafe(self._refusal_log, who, where, why)

    # --- who is here -----------------------------------------------------------------------------------------------

    def incarnation_of(self, name: str) -> int | None:
        return self._membership.incarnation_of(name) or None

    def record_contact(self, name: str, life: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so are we
            self._loop.call_soon_threadsafe(self._apply_event, DeviceHeard(name, life))

    def on_stale_incarnation(self, name: str, life: int) -> None:
        self.node_runtime.mailbox.send_control(name, ExpelNotice(life, "the coordinator took it for lost"), life)

    def on_protocol_violation(self, name: str, life: int | None, reason: str) -> None:
        _log.warning("%s sent what is no message: %s", name, reason)
        present = self._membership.incarnation_of(name)
        self.node_runtime.mailbox.send_control(name, TransferDeclined(0, reason), present)
        self._apply_event(ProtocolViolated(name, present if life is None else life, reason))

    def _handle_control(self, sender: str, life: int, note: ControlMessage) -> None:
        match note:
            case DeviceHeartbeat(ready=True):
                self._apply_event(DeviceReady(sender, life))
            case LeaveNotice(reason=reason, failed=failed, trace=trace):
                is_current = self._membership.incarnation_of(sender) == life
                self._apply_event(DeviceLeft(sender, life, reason, failed))
                if trace and is_current:
                    self._fail_run(DeviceError(sender, reason.removeprefix("failed: "), trace))
            case JournalBatch(records=records):
                for record in records:
                    if is_valid_record(record, sender):
                        self._journal.write_record(record)

    def _on_liveliness(self, sample: zenoh.Sample) -> None:
        """A token came or went; on one of Zenoh's threads."""
        who = key_expressions.parse_liveliness_key(str(sample.key_expr))
        if who is not None and sample.kind == zenoh.SampleKind.DELETE and not self._conditions.is_cut(who[0]):
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so are we
                self._loop.call_soon_threadsafe(self._apply_event, ConnectionBroken(*who))

    async def _tick_membership(self) -> None:
        while True:
            await asyncio.sleep(self._rules.lease / 10)
            self._apply_event(LeaseTick())

    def _apply_event(self, event: Event) -> None:
        self._membership, notices = membership.apply_event(time.monotonic(), self._membership, event, self._rules)
        for notice in notices:
            self._announce_change(notice)
        if notices:
            here = self._membership.ready_devices()
            self.node_runtime.heartbeat.set_recipients(here)
            self._on_members_changed(here)
            self._changed.set()
            if self._direct:
                self._send_roster()

    def _announce_change(self, notice: Joined | Lost) -> None:
        if isinstance(notice, Lost):
            level = logging.WARNING if notice.reason.startswith("failed: ") else logging.INFO
            _log.log(level, "lost %s (life %d): %s", notice.device, notice.incarnation, notice.reason)
            self.node_runtime.mailbox.drop_peer(notice.device)
        else:
            _log.info("%s is here (life %d)", notice.device, notice.incarnation)
            if self._clock.start_time is not None:
                self.node_runtime.mailbox.send_control(
                    notice.device, RunStarted(self._clock.start_time), notice.incarnation
                )
        self.node_runtime.node.deliver(Envelope(COORDINATOR, 0, notice))

    async def _resend_roster(self) -> None:
        """Now and then again, for those who missed it."""
        while self._direct:
            await asyncio.sleep(_ROSTER_EVERY_S)
            self._send_roster()

    def _send_roster(self) -> None:
        here = self._membership.ready_devices()
        for name, life in here.items():
            self.node_runtime.mailbox.send_control(name, Roster(self._membership.epoch, here), life)


async def _do_nothing() -> None:
    pass
