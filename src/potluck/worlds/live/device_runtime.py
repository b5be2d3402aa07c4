"""A device's side of a live run: join, take part, and join again if the coordinator is lost.

Each join is a new incarnation; no state of the previous one is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import zenoh
from zenoh.handlers import Callback

from potluck import seeds
from potluck.errors import UserError
from potluck.fleet import Fleet, device_speed
from potluck.fleet.speed_curve import SpeedCurve
from potluck.journal import JournalRecord
from potluck.loops.node import COORDINATOR, Node
from potluck.user_code import describe_user_error
from potluck.worlds.live import key_expressions
from potluck.worlds.live.callback_guard import guard_callback
from potluck.worlds.live.compute_speed import ComputeSpeed, MeasuredSpeed, ModelledSpeed
from potluck.worlds.live.control_messages import (
    ControlMessage,
    Coordinators,
    DeviceHeartbeat,
    ExpelNotice,
    LeaveNotice,
    Roster,
    RunEnded,
    RunStarted,
)
from potluck.worlds.live.cpu_quota import CpuQuota
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRequest
from potluck.worlds.live.join_handshake import JoinRefusedError, KnownCoordinators, join_run, query_run_clock
from potluck.worlds.live.journal_forwarding import JournalForwarder
from potluck.worlds.live.link_shaping import LinkConditions, ShapedLinks
from potluck.worlds.live.node_runtime import NodeOwner, NodeRuntime
from potluck.worlds.live.peer_directory import NodeIdentity
from potluck.worlds.live.run_clock import RunClock, estimate_clock_offset
from potluck.worlds.live.zenoh_session import Endpoint, close_session

__all__ = ["DeviceMain", "DeviceOptions", "FleetLoader", "JoinRefusedError", "run_device"]

DeviceMain = Callable[[Node, JoinAccepted], Coroutine[Any, Any, None]]
FleetLoader = Callable[[JoinAccepted], Fleet]

_STOP_TIMEOUT_S = 0.25  # until a main that was asked to stop is cancelled
_MAX_TRACE = 8_000  # characters of a traceback that are sent

_log = logging.getLogger("potluck")


class _IncarnationEnd(NamedTuple):
    """How an incarnation ended: with the run, or because the coordinator was lost."""

    run_ended: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """How a device takes part.

    With `once` the device exits when the run ends, and raises EndpointError if it finds no coordinator within
    `timeout_s`; otherwise it waits for the next run for ever. `known_digest` is called before every join request and
    returns the digest of the job that the device is bound to: the coordinator of another job refuses it.
    """

    once: bool = False
    timeout_s: float = 60.0
    throttle: float = 1.0  # fraction of the machine's speed to use
    load_fleet: FleetLoader | None = None  # needed where the coordinator emulates links and speeds
    known_digest: Callable[[], str] = lambda: ""


_DEFAULTS = DeviceOptions()


async def run_device(
    endpoint: Endpoint, request: JoinRequest, device_main: DeviceMain, options: DeviceOptions = _DEFAULTS
) -> str:
    """Take part in the run of the coordinator at `endpoint.connect`, and return the reason why it ended.

    `device_main` runs once per incarnation and is cancelled when the coordinator is lost. The coordinator announces
    the device only once `device_main` first waits for a message, so it may take its time to set up.
    JoinRefusedError is raised where retrying would not help, unless the device waits for the next run and has been in
    one before.
    """
    request = msgspec.structs.replace(request, body=secrets.token_hex(16))
    compute_speed = MeasuredSpeed(options.throttle, CpuQuota(request.threads).allowed_fraction)
    timeout_s = options.timeout_s if options.once else None
    has_joined, known = False, KnownCoordinators(endpoint.connect)
    while True:
        current = msgspec.structs.replace(request, digest=options.known_digest() or request.digest)
        session, accepted = await join_run(endpoint, current, timeout_s, known, persist=has_joined and not options.once)
        has_joined = True
        known.add_addresses(accepted.coordinators)
        runtime = await _DeviceRuntime.start(session, accepted, compute_speed, options.load_fleet)
        runtime.on_coordinators = known.add_addresses
        end = await runtime.run_until_end(device_main)
        _log.info("%s: %s", accepted.name, end.reason)
        if end.run_ended:
            known.forget_run()
            if options.once:
                return end.reason


class _DeviceRuntime(NodeOwner):
    """One incarnation of a device, from joining to leaving."""

    def __init__(
        self,
        session: zenoh.Session,
        accepted: JoinAccepted,
        clock_offset_s: float,
        compute_speed: ComputeSpeed,
        load_fleet: FleetLoader | None,
    ) -> None:
        self._session = session
        self._accepted = accepted
        self._clock = RunClock(offset=clock_offset_s)
        if accepted.zero is not None:
            self._clock.set_start_time(accepted.zero)
        self._roster = Roster(0, {})
        self.on_coordinators: Callable[[list[str]], None] = lambda addresses: None
        self._heard_at = time.monotonic()
        self._end_future: asyncio.Future[_IncarnationEnd] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._journal_forwarder = JournalForwarder(
            lambda batch: self.node_runtime.mailbox.send_control(COORDINATOR, batch)
        )
        conditions = LinkConditions()
        if accepted.shaped and load_fleet is not None:
            fleet = load_fleet(accepted)
            conditions = ShapedLinks(fleet, accepted.seed, accepted.name, self._clock.now)
            compute_speed = self._modelled_speed(fleet)
        identity = NodeIdentity(
            name=accepted.name, incarnation=accepted.incarnation, era=accepted.era, seed=accepted.seed,
            lease=accepted.lease, limit_bytes=accepted.limit_bytes,
        )  # fmt: skip
        self.node_runtime = NodeRuntime(session, identity, self._clock, compute_speed, conditions, self)

    @classmethod
    async def start(
        cls, session: zenoh.Session, accepted: JoinAccepted, compute_speed: ComputeSpeed, load_fleet: FleetLoader | None
    ) -> _DeviceRuntime:
        try:
            offset = await asyncio.to_thread(estimate_clock_offset, lambda: query_run_clock(session, accepted))
            runtime = cls(session, accepted, offset, compute_speed, load_fleet)
        except BaseException:
            await close_session(session)
            raise
        try:
            runtime.node_runtime.open()
            await asyncio.to_thread(runtime._declare_keys)
        except BaseException:
            await runtime.node_runtime.close()
            raise
        runtime.node_runtime.heartbeat.set_recipients({COORDINATOR: 0})
        return runtime

    def _declare_keys(self) -> None:
        era, name, incarnation = self._accepted.era, self._accepted.name, self._accepted.incarnation
        liveliness = self._session.liveliness()
        self._liveliness_token = liveliness.declare_token(key_expressions.liveliness_key(era, name, incarnation))
        liveliness.declare_subscriber(
            key_expressions.liveliness_key(era, COORDINATOR, 0),
            Callback(guard_callback(self._on_liveliness), indirect=False),
            history=True,
        )

    async def run_until_end(self, device_main: DeviceMain) -> _IncarnationEnd:
        """Take part until the run ends or the coordinator is lost; then close everything."""
        main = asyncio.create_task(device_main(self.node_runtime.node, self._accepted))
        lease_watch = asyncio.create_task(self._watch_lease())
        reason, failed, trace = "interrupted", False, ""
        try:
            end = await self._wait_for_end(main)
            reason = end.reason
            return end
        except Exception as error:
            reason, failed = f"failed: {describe_user_error(error)}", True
            trace = "" if _is_device_fault(error) else "".join(traceback.format_exception(error))[-_MAX_TRACE:]
            raise
        finally:
            lease_watch.cancel()
            main.cancel()
            await asyncio.gather(lease_watch, main, return_exceptions=True)
            self._journal_forwarder.flush()
            self.node_runtime.mailbox.send_control(COORDINATOR, LeaveNotice(reason[:1000], failed, trace))
            await self.node_runtime.close()

    async def _wait_for_end(self, main: asyncio.Task[None]) -> _IncarnationEnd:
        ends: list[asyncio.Future[Any]] = [main, self._end_future]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._end_future.done() and self._end_future.result().run_ended and not main.done():
            await asyncio.wait([main], timeout=_STOP_TIMEOUT_S)
        if main.done():
            main.result()
            return _IncarnationEnd(True, "the run is over")
        return self._end_future.result()

    async def _watch_lease(self) -> None:
        """Consider the coordinator lost when it is silent for longer than the lease."""
        lease = self._accepted.lease
        while True:
            await asyncio.sleep(lease / 10)
            if time.monotonic() - self._heard_at > lease:
                self._set_end(False, f"no message from the coordinator for {lease:g} s")

    def _set_end(self, run_ended: bool, reason: str) -> None:
        if not self._end_future.done():
            self._end_future.set_result(_IncarnationEnd(run_ended, reason))

    # --- NodeOwner -------------------------------------------------------------------------------------------------

    def write_record(self, record: JournalRecord) -> None:
        self._journal_forwarder.add_record(record)

    def make_heartbeat(self) -> ControlMessage:
        return DeviceHeartbeat(self.node_runtime.node.is_listening)

    def on_listening(self) -> None:
        self.node_runtime.mailbox.send_control(COORDINATOR, DeviceHeartbeat(True))

    async def before_last_chunk(self) -> None:
        """Flush the records, so that they reach the coordinator before the message that they are about."""
        self._journal_forwarder.flush()
        await self.node_runtime.transport.flush_control()

    def incarnation_of(self, name: str) -> int | None:
        return 0 if name == COORDINATOR else self._roster.here.get(name)

    def on_protocol_violation(self, name: str, incarnation: int | None, reason: str) -> None:
        _log.warning("%s sent an invalid message: %s", name, reason)

    def record_contact(self, name: str, incarnation: int) -> None:
        if name == COORDINATOR:
            self._heard_at = time.monotonic()

    def handle_control(self, sender: str, incarnation: int, message: ControlMessage) -> None:
        if sender != COORDINATOR:
            return
        match message:
            case RunStarted(zero=start_time):
                self._clock.set_start_time(start_time)
            case Roster() as roster if roster.epoch >= self._roster.epoch:
                self._apply_roster(roster)
            case Coordinators(addresses=addresses):
                self.on_coordinators(addresses)
            case RunEnded(reason=reason):
                self._set_end(True, reason)
            case ExpelNotice(reason=reason):
                self._set_end(False, reason)

    def _apply_roster(self, roster: Roster) -> None:
        previous, self._roster = self._roster, roster
        for name, incarnation in previous.here.items():
            if roster.here.get(name) != incarnation:
                self.node_runtime.mailbox.drop_peer(name)

    def _on_liveliness(self, sample: zenoh.Sample) -> None:
        """Called from one of Zenoh's threads."""
        if sample.kind == zenoh.SampleKind.DELETE:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: the run has ended
                self._loop.call_soon_threadsafe(self._set_end, False, "the connection to the coordinator broke")

    def _modelled_speed(self, fleet: Fleet) -> ComputeSpeed:
        device = next(device for device in fleet.members if device.name == self._accepted.name)
        seed = self._accepted.seed
        intervals = device_speed(fleet, device, lambda name: seeds.child_generator(seed, "fleet", name))
        return ModelledSpeed(SpeedCurve(intervals), self._clock.now)


def _is_device_fault(error: Exception) -> bool:
    """Whether an error is about this device (its input, files or memory), not about code that all devices run."""
    return isinstance(error, UserError | OSError | MemoryError) or "allocate memory" in str(error)
