"""A device's side of a live run: knock, come in, take part; and if the coordinator is lost, do it all again.

Each time it comes in is a new life with a new incarnation: nothing of the last one is carried over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import msgspec
import zenoh
from zenoh.handlers import Callback

from potluck import seeds
from potluck.fleet import Fleet, device_speed
from potluck.fleet.speed_curve import SpeedCurve
from potluck.loops.node import COORDINATOR, Node
from potluck.worlds.live import key_expressions
from potluck.worlds.live.compute_speed import ComputeSpeed, MeasuredSpeed, ModelledSpeed
from potluck.worlds.live.control_messages import (
    ControlMessage,
    DeviceHeartbeat,
    ExpelNotice,
    LeaveNotice,
    Roster,
    RunEnded,
    RunStarted,
)
from potluck.worlds.live.cpu_quota import CpuQuota
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRequest
from potluck.worlds.live.join_handshake import JoinRefusedError, join_run, query_run_clock
from potluck.worlds.live.journal_forwarding import JournalForwarder
from potluck.worlds.live.link_shaping import LinkConditions, ShapedLinks
from potluck.worlds.live.node_runtime import NodeIdentity, NodeRuntime
from potluck.worlds.live.peer_directory import PeerDirectory
from potluck.worlds.live.run_clock import RunClock, estimate_clock_offset
from potluck.worlds.live.zenoh_session import Endpoint, close_session

__all__ = ["JoinRefusedError", "run_device"]

TakePart = Callable[[Node, JoinAccepted], Coroutine[Any, Any, None]]
FleetOf = Callable[[JoinAccepted], Fleet]

_FAREWELL_S = 0.25  # until a loop that was told to stop is broken off

_log = logging.getLogger("potluck")


class _IncarnationEnd(NamedTuple):
    """How a stay ended; `over` if the run is, else the coordinator was lost."""

    run_ended: bool
    reason: str


async def run_device(
    place: Endpoint,
    *,
    hello: JoinRequest,
    take_part: TakePart,
    once: bool = False,
    patience_s: float = 60.0,
    throttle: float = 1.0,
    fleet_of: FleetOf | None = None,
    knows: Callable[[], str] = lambda: "",
) -> str:
    """Take part in the run of the coordinator at `place.connect`, and say how it ended.

    `take_part` is run for every life and cancelled when the coordinator is lost; the others are told that the device
    is here once it first listens, so it may take its time to get ready. With `once` it ends with the run,
    and PlaceError is raised where no coordinator is found for `patience_s`; else it waits for the next run for ever.
    RefusedError is raised where asking again would not help, unless it waits for the next run and was in one before.
    `throttle` makes the device act slower than it is; `fleet_of` finds the fleet in the welcome where the host acts
    out links and speeds. `knows` is asked at every knock for the digest of the job that the device holds to: the
    coordinator of another job refuses it.
    """
    hello = msgspec.structs.replace(hello, body=secrets.token_hex(16))
    effort = MeasuredSpeed(throttle, CpuQuota(hello.threads).allowed_fraction)
    was_in = False
    while True:
        asking = msgspec.structs.replace(hello, digest=knows() or hello.digest)
        session, welcome = await join_run(place, asking, patience_s if once else None, persist=was_in and not once)
        was_in = True
        stay = await _DeviceRuntime.start(session, welcome, effort, fleet_of)
        end = await stay.run_until_end(take_part)
        _log.info("%s: %s", welcome.name, end.reason)
        if end.run_ended and once:
            return end.reason


# --- one stay -------------------------------------------------------------------------------------------------------


class _DeviceRuntime(PeerDirectory):
    """One life, from coming in to leaving."""

    def __init__(
        self,
        session: zenoh.Session,
        welcome: JoinAccepted,
        offset: float,
        effort: ComputeSpeed,
        fleet_of: FleetOf | None,
    ) -> None:
        self._session = session
        self._accepted = welcome
        self._clock = RunClock(offset=offset)
        if welcome.zero is not None:
            self._clock.set_start_time(welcome.zero)
        self._roster = Roster(0, {})
        self._heard_at = time.monotonic()
        self._end_future: asyncio.Future[_IncarnationEnd] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._journal_forwarder = JournalForwarder(
            lambda shipment: self.node_runtime.mailbox.send_control(COORDINATOR, shipment)
        )
        fleet = fleet_of(welcome) if welcome.shaped and fleet_of is not None else None
        who = NodeIdentity(
            name=welcome.name, incarnation=welcome.incarnation, era=welcome.era, seed=welcome.seed, lease=welcome.lease,
            limit_bytes=welcome.limit_bytes,
        )  # fmt: skip
        self.node_runtime = NodeRuntime(
            session,
            who,
            self._clock,
            effort if fleet is None else self._modelled_speed(fleet),
            LinkConditions() if fleet is None else ShapedLinks(fleet, welcome.seed, welcome.name, self._clock.now),
            self,
            record=self._journal_forwarder.add_record,
            take_note=self._handle_control,
            beat=lambda: DeviceHeartbeat(self.node_runtime.node.is_listening),
            before_last=self._flush_records,
            listening=lambda: self.node_runtime.mailbox.send_control(COORDINATOR, DeviceHeartbeat(True)),
        )

    @classmethod
    async def start(
        cls, session: zenoh.Session, welcome: JoinAccepted, effort: ComputeSpeed, fleet_of: FleetOf | None
    ) -> _DeviceRuntime:
        try:
            offset = await asyncio.to_thread(estimate_clock_offset, lambda: query_run_clock(session, welcome))
            stay = cls(session, welcome, offset, effort, fleet_of)
        except BaseException:
            await close_session(session)
            raise
        try:
            stay.node_runtime.open()
            await asyncio.to_thread(stay._declare_keys)
        except BaseException:
            await stay.node_runtime.close()
            raise
        stay.node_runtime.heartbeat.set_recipients({COORDINATOR: 0})
        return stay

    def _declare_keys(self) -> None:
        era, name, life = self._accepted.era, self._accepted.name, self._accepted.incarnation
        liveliness = self._session.liveliness()
        self._liveliness_token = liveliness.declare_token(key_expressions.liveliness_key(era, name, life))
        liveliness.declare_subscriber(
            key_expressions.liveliness_key(era, COORDINATOR, 0),
            Callback(self._on_liveliness, indirect=False),
            history=True,
        )

    async def run_until_end(self, take_part: TakePart) -> _IncarnationEnd:
        """Take part until the run is over or the coordinator is lost; then leave nothing behind."""
        part = asyncio.create_task(take_part(self.node_runtime.node, self._accepted))
        watch = asyncio.create_task(self._watch_lease())
        goodbye, failed = "broken off", False
        try:
            end = await self._wait_for_end(part)
            goodbye = end.reason
            return end
        except Exception as error:
            goodbye, failed = f"failed: {type(error).__name__}: {error}", True
            raise
        finally:
            watch.cancel()
            part.cancel()
            await asyncio.gather(watch, part, return_exceptions=True)
            self._journal_forwarder.flush()
            self.node_runtime.mailbox.send_control(COORDINATOR, LeaveNotice(goodbye[:1000], failed))
            await self.node_runtime.close()

    async def _wait_for_end(self, part: asyncio.Task[None]) -> _IncarnationEnd:
        either: list[asyncio.Future[Any]] = [part, self._end_future]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._end_future.done() and self._end_future.result().run_ended and not part.done():
            await asyncio.wait([part], timeout=_FAREWELL_S)
        if part.done():
            part.result()
            return _IncarnationEnd(True, "the run is over")
        return self._end_future.result()

    async def _watch_lease(self) -> None:
        """Take the coordinator for lost when it is silent for longer than the lease."""
        lease = self._accepted.lease
        while True:
            await asyncio.sleep(lease / 10)
            if time.monotonic() - self._heard_at > lease:
                self._set_end(False, f"not a word from the coordinator for {lease:g} s")

    def _set_end(self, over: bool, reason: str) -> None:
        if not self._end_future.done():
            self._end_future.set_result(_IncarnationEnd(over, reason))

    async def _flush_records(self) -> None:
        """What was recorded goes ahead of what it is about."""
        self._journal_forwarder.flush()
        await self.node_runtime.transport.flush_control()

    # --- what comes in ---------------------------------------------------------------------------------------------

    def incarnation_of(self, name: str) -> int | None:
        return 0 if name == COORDINATOR else self._roster.here.get(name)

    def on_protocol_violation(self, name: str, life: int | None, reason: str) -> None:
        _log.warning("%s sent what is no message: %s", name, reason)

    def record_contact(self, name: str, life: int) -> None:
        if name == COORDINATOR:
            self._heard_at = time.monotonic()

    def _handle_control(self, sender: str, life: int, note: ControlMessage) -> None:
        if sender != COORDINATOR:
            return
        match note:
            case RunStarted(zero=zero):
                self._clock.set_start_time(zero)
            case Roster() as roster if roster.epoch >= self._roster.epoch:
                self._apply_roster(roster)
            case RunEnded(reason=reason):
                self._set_end(True, reason)
            case ExpelNotice(reason=reason):
                self._set_end(False, reason)

    def _apply_roster(self, roster: Roster) -> None:
        old, self._roster = self._roster, roster
        for name, life in old.here.items():
            if roster.here.get(name) != life:
                self.node_runtime.mailbox.drop_peer(name)

    def _on_liveliness(self, sample: zenoh.Sample) -> None:
        """On one of Zenoh's threads."""
        if sample.kind == zenoh.SampleKind.DELETE:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so are we
                self._loop.call_soon_threadsafe(self._set_end, False, "the connection to the coordinator broke")

    def _modelled_speed(self, fleet: Fleet) -> ComputeSpeed:
        device = next(device for device in fleet.members if device.name == self._accepted.name)
        seed = self._accepted.seed
        pieces = device_speed(fleet, device, lambda name: seeds.child_generator(seed, "fleet", name))
        return ModelledSpeed(SpeedCurve(pieces), self._clock.now)
