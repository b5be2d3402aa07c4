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
from potluck.fleet import Fleet, speed
from potluck.loops.node import COORDINATOR, Node
from potluck.worlds.live import keys
from potluck.worlds.live.clock import RunClock, offset_to
from potluck.worlds.live.effort import AsModelled, Effort, Natural
from potluck.worlds.live.entrance import RefusedError, ask_time, come_in
from potluck.worlds.live.greeting import Hello, Welcome
from potluck.worlds.live.neighbours import Neighbours
from potluck.worlds.live.notes import Beat, Begin, Expelled, Goodbye, Note, Over, Roster
from potluck.worlds.live.processor import Allowance
from potluck.worlds.live.session import Place, close_session
from potluck.worlds.live.shaping import Conditions, Shaped
from potluck.worlds.live.shipping import Shipping
from potluck.worlds.live.station import Identity, Station
from potluck.worlds.simulated.speed import Curve

__all__ = ["RefusedError", "visit"]

TakePart = Callable[[Node, Welcome], Coroutine[Any, Any, None]]
FleetOf = Callable[[Welcome], Fleet]

_FAREWELL_S = 0.25  # until a loop that was told to stop is broken off

_log = logging.getLogger("potluck")


class _End(NamedTuple):
    """How a stay ended; `over` if the run is, else the coordinator was lost."""

    over: bool
    reason: str


async def visit(
    place: Place,
    *,
    hello: Hello,
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
    effort = Natural(throttle, Allowance(hello.threads).share)
    was_in = False
    while True:
        asking = msgspec.structs.replace(hello, digest=knows() or hello.digest)
        session, welcome = await come_in(place, asking, patience_s if once else None, persist=was_in and not once)
        was_in = True
        stay = await _Stay.begin(session, welcome, effort, fleet_of)
        end = await stay.last(take_part)
        _log.info("%s: %s", welcome.name, end.reason)
        if end.over and once:
            return end.reason


# --- one stay -------------------------------------------------------------------------------------------------------


class _Stay(Neighbours):
    """One life, from coming in to leaving."""

    def __init__(
        self, session: zenoh.Session, welcome: Welcome, offset: float, effort: Effort, fleet_of: FleetOf | None
    ) -> None:
        self._session = session
        self._welcome = welcome
        self._clock = RunClock(offset=offset)
        if welcome.zero is not None:
            self._clock.begin(welcome.zero)
        self._roster = Roster(0, {})
        self._heard_at = time.monotonic()
        self._ended: asyncio.Future[_End] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._shipping = Shipping(lambda shipment: self.station.carrier.say(COORDINATOR, shipment))
        fleet = fleet_of(welcome) if welcome.shaped and fleet_of is not None else None
        who = Identity(
            name=welcome.name, life=welcome.incarnation, era=welcome.era, seed=welcome.seed, lease=welcome.lease,
            limit_bytes=welcome.limit_bytes,
        )  # fmt: skip
        self.station = Station(
            session,
            who,
            self._clock,
            effort if fleet is None else self._as_modelled(fleet),
            Conditions() if fleet is None else Shaped(fleet, welcome.seed, welcome.name, self._clock.now),
            self,
            record=self._shipping.add,
            take_note=self._take_note,
            beat=lambda: Beat(self.station.node.listens),
            before_last=self._ship,
            listening=lambda: self.station.carrier.say(COORDINATOR, Beat(True)),
        )

    @classmethod
    async def begin(cls, session: zenoh.Session, welcome: Welcome, effort: Effort, fleet_of: FleetOf | None) -> _Stay:
        try:
            offset = await asyncio.to_thread(offset_to, lambda: ask_time(session, welcome))
            stay = cls(session, welcome, offset, effort, fleet_of)
        except BaseException:
            await close_session(session)
            raise
        try:
            stay.station.open()
            await asyncio.to_thread(stay._declare)
        except BaseException:
            await stay.station.close()
            raise
        stay.station.heart.beat_for({COORDINATOR: 0})
        return stay

    def _declare(self) -> None:
        era, name, life = self._welcome.era, self._welcome.name, self._welcome.incarnation
        liveliness = self._session.liveliness()
        self._token_of_life = liveliness.declare_token(keys.alive(era, name, life))
        liveliness.declare_subscriber(
            keys.alive(era, COORDINATOR, 0), Callback(self._token, indirect=False), history=True
        )

    async def last(self, take_part: TakePart) -> _End:
        """Take part until the run is over or the coordinator is lost; then leave nothing behind."""
        part = asyncio.create_task(take_part(self.station.node, self._welcome))
        watch = asyncio.create_task(self._watch())
        goodbye, failed = "broken off", False
        try:
            end = await self._first_end(part)
            goodbye = end.reason
            return end
        except Exception as error:
            goodbye, failed = f"failed: {type(error).__name__}: {error}", True
            raise
        finally:
            watch.cancel()
            part.cancel()
            await asyncio.gather(watch, part, return_exceptions=True)
            self._shipping.flush()
            self.station.carrier.say(COORDINATOR, Goodbye(goodbye[:1000], failed))
            await self.station.close()

    async def _first_end(self, part: asyncio.Task[None]) -> _End:
        either: list[asyncio.Future[Any]] = [part, self._ended]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._ended.done() and self._ended.result().over and not part.done():
            await asyncio.wait([part], timeout=_FAREWELL_S)
        if part.done():
            part.result()
            return _End(True, "the run is over")
        return self._ended.result()

    async def _watch(self) -> None:
        """Take the coordinator for lost when it is silent for longer than the lease."""
        lease = self._welcome.lease
        while True:
            await asyncio.sleep(lease / 10)
            if time.monotonic() - self._heard_at > lease:
                self._end(False, f"not a word from the coordinator for {lease:g} s")

    def _end(self, over: bool, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(_End(over, reason))

    async def _ship(self) -> None:
        """What was recorded goes ahead of what it is about."""
        self._shipping.flush()
        await self.station.post.said()

    # --- what comes in ---------------------------------------------------------------------------------------------

    def life_of(self, name: str) -> int | None:
        return 0 if name == COORDINATOR else self._roster.here.get(name)

    def offence(self, name: str, life: int | None, reason: str) -> None:
        _log.warning("%s sent what is no message: %s", name, reason)

    def heard(self, name: str, life: int) -> None:
        if name == COORDINATOR:
            self._heard_at = time.monotonic()

    def _take_note(self, sender: str, life: int, note: Note) -> None:
        if sender != COORDINATOR:
            return
        match note:
            case Begin(zero=zero):
                self._clock.begin(zero)
            case Roster() as roster if roster.epoch >= self._roster.epoch:
                self._take_roster(roster)
            case Over(reason=reason):
                self._end(True, reason)
            case Expelled(reason=reason):
                self._end(False, reason)

    def _take_roster(self, roster: Roster) -> None:
        old, self._roster = self._roster, roster
        for name, life in old.here.items():
            if roster.here.get(name) != life:
                self.station.carrier.forget(name)

    def _token(self, sample: zenoh.Sample) -> None:
        """On one of Zenoh's threads."""
        if sample.kind == zenoh.SampleKind.DELETE:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so are we
                self._loop.call_soon_threadsafe(self._end, False, "the connection to the coordinator broke")

    def _as_modelled(self, fleet: Fleet) -> Effort:
        device = next(device for device in fleet.members if device.name == self._welcome.name)
        seed = self._welcome.seed
        pieces = speed(fleet, device, lambda name: seeds.generator(seed, "fleet", name))
        return AsModelled(Curve(pieces), self._clock.now)
