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
from potluck.worlds.live import keys, membership
from potluck.worlds.live.clock import RunClock
from potluck.worlds.live.door import Door, Doorkeeper, tell_time
from potluck.worlds.live.effort import Natural
from potluck.worlds.live.greeting import Hello, Refusal, RunCard, Welcome
from potluck.worlds.live.membership import Event, Greeted, Heard, Left, Offended, Ready, Rules, State, Tick, Vanished
from potluck.worlds.live.neighbours import Neighbours
from potluck.worlds.live.notes import Beat, Begin, Decline, Expelled, Goodbye, Note, Over, Pulse, Roster, Shipment
from potluck.worlds.live.refusals import Refusals, Refused
from potluck.worlds.live.session import Place, open_session_aside
from potluck.worlds.live.shaping import Conditions, Shaped
from potluck.worlds.live.shipping import is_honest
from potluck.worlds.live.station import Identity, Station

__all__ = ["Doorkeeper", "Watch", "host"]

T = TypeVar("T")
Watch = Callable[[Mapping[str, int]], None]

_FAREWELL_S = 1.0
_ROSTER_EVERY_S = 1.0
_LOOK_EVERY_S = 0.25  # whether to hurry

_log = logging.getLogger("potluck")


async def host(
    place: Place,
    *,
    run: RunCard,
    seed: int,
    journal: Journal,
    coordinate: Callable[[Node], Coroutine[Any, Any, T]],
    welcome: Doorkeeper,
    admitted: Callable[[Hello], None] = lambda hello: None,
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
    session = await open_session_aside(place, "router")
    hosting = _Host(session, place, run, seed, journal, welcome, admitted, watch, began_s, fleet)
    reason = "the run was broken off"
    try:
        await asyncio.to_thread(opened, session, hosting.refused)
        await hosting.open()
        await hosting.muster(set(muster), muster_s, hurry)
        hosting.begin()
        result = await coordinate(hosting.station.node)
        reason = "the run is over"
        return result
    finally:
        await hosting.close(reason)


class _Host(Neighbours):
    def __init__(
        self,
        session: zenoh.Session,
        place: Place,
        card: RunCard,
        seed: int,
        journal: Journal,
        welcome: Doorkeeper,
        admitted: Callable[[Hello], None],
        watch: Watch,
        began_s: float,
        fleet: Fleet | None,
    ) -> None:
        self._session = session
        self._card = card
        self._seed = seed
        self._journal = journal
        self._door = Door(welcome, self._admit, lambda name: self._conditions.is_cut(name), admitted, self.refused)
        self._watch = watch
        self._shaped = fleet is not None
        self._direct = place.direct
        self._era = f"{card.run}.{secrets.token_hex(4)}"
        self._clock = RunClock(began_s)
        self._conditions = Conditions() if fleet is None else Shaped(fleet, seed, COORDINATOR, self._clock.now)
        self._refusals = Refusals(journal.write, self._clock.now)
        self._state = State()
        self._rules = Rules(lease=card.lease)
        self._changed = asyncio.Event()
        self._closing = ""
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        who = Identity(
            name=COORDINATOR, life=0, era=self._era, seed=seed, lease=card.lease, limit_bytes=card.limit_bytes
        )
        self.station = Station(
            session,
            who,
            self._clock,
            Natural(),
            self._conditions,
            self,
            record=journal.write,
            take_note=self._take_note,
            beat=lambda: Pulse(self._state.epoch),
            before_last=_nothing,
        )

    async def open(self) -> None:
        self.station.open()
        await asyncio.to_thread(self._declare)
        self._tasks = [asyncio.create_task(self._tick()), asyncio.create_task(self._spread_roster())]

    def _declare(self) -> None:
        session, era = self._session, self._era
        self._door.open(session)
        tell_time(session, era)
        liveliness = session.liveliness()
        liveliness.declare_subscriber(keys.alive(era, keys.ANY, keys.ANY), Callback(self._token, indirect=False))
        self._token_of_life = liveliness.declare_token(keys.alive(era, COORDINATOR, 0))

    async def muster(self, wanted: set[str], seconds: float, hurry: Callable[[], bool]) -> None:
        """Wait for the fleet."""
        until = time.monotonic() + seconds
        while not (wanted <= self._state.here().keys() or hurry() or time.monotonic() >= until):
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(_LOOK_EVERY_S, max(until - time.monotonic(), 0.0)))
        missing = wanted - self._state.here().keys()
        if missing and not hurry():
            _log.warning("the run begins without %s: not here after %g s", ", ".join(sorted(missing)), seconds)

    def begin(self) -> None:
        zero = self._clock.begin_now()
        for name, life in self._state.here().items():
            self.station.carrier.say(name, Begin(zero), life)

    async def close(self, reason: str) -> None:
        """Tell everybody, wait a moment for their goodbyes, and leave."""
        self._closing = reason
        for name, life in self._state.here().items():
            self.station.carrier.say(name, Stop(), life)
            self.station.carrier.say(name, Over(reason), life)
        try:
            async with asyncio.timeout(_FAREWELL_S):
                while self._state.here():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            _log.debug("no goodbye from %s", ", ".join(self._state.here()))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.station.close()

    def _admit(self, name: str, body: str) -> Welcome | Refusal:
        """Let a device in as a new life, unless it has to wait."""
        if self._closing:
            return Refusal(reason=self._closing, retry_s=2.0)
        turned = membership.greet(time.monotonic(), self._state, name, body, self._rules)
        if turned is not None:
            return Refusal(reason=turned.reason, retry_s=turned.retry_s)
        self._step(Greeted(name, body))
        return self._welcome_to(name)

    def _welcome_to(self, name: str) -> Welcome:
        card = self._card
        return Welcome(
            run=card.run, era=self._era, name=name, incarnation=self._state.life(name), job=card.job,
            digest=card.digest, model=card.model, seed=self._seed, lease=card.lease, limit_bytes=card.limit_bytes,
            shaped=self._shaped, direct=self._direct, bears=card.bears if self._direct else {}, zero=self._clock.zero,
        )  # fmt: skip

    def refused(self, who: str, where: str, why: str) -> None:
        """Somebody was turned away; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so are we
            self._loop.call_soon_threadsafe(self._refusals, who, where, why)

    # --- who is here -----------------------------------------------------------------------------------------------

    def life_of(self, name: str) -> int | None:
        return self._state.life(name) or None

    def heard(self, name: str, life: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so are we
            self._loop.call_soon_threadsafe(self._step, Heard(name, life))

    def stranger(self, name: str, life: int) -> None:
        self.station.carrier.say(name, Expelled(life, "the coordinator took it for lost"), life)

    def offence(self, name: str, life: int | None, reason: str) -> None:
        _log.warning("%s sent what is no message: %s", name, reason)
        present = self._state.life(name)
        self.station.carrier.say(name, Decline(0, reason), present)
        self._step(Offended(name, present if life is None else life, reason))

    def _take_note(self, sender: str, life: int, note: Note) -> None:
        match note:
            case Beat(ready=True):
                self._step(Ready(sender, life))
            case Goodbye(reason=reason, failed=failed):
                self._step(Left(sender, life, reason, failed))
            case Shipment(records=records):
                for record in records:
                    if is_honest(record, sender):
                        self._journal.write(record)

    def _token(self, sample: zenoh.Sample) -> None:
        """A token came or went; on one of Zenoh's threads."""
        who = keys.who_is_alive(str(sample.key_expr))
        if who is not None and sample.kind == zenoh.SampleKind.DELETE and not self._conditions.is_cut(who[0]):
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so are we
                self._loop.call_soon_threadsafe(self._step, Vanished(*who))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._rules.lease / 10)
            self._step(Tick())

    def _step(self, event: Event) -> None:
        self._state, notices = membership.step(time.monotonic(), self._state, event, self._rules)
        for notice in notices:
            self._announce(notice)
        if notices:
            here = self._state.here()
            self.station.heart.beat_for(here)
            self._watch(here)
            self._changed.set()
            if self._direct:
                self._send_roster()

    def _announce(self, notice: Joined | Lost) -> None:
        if isinstance(notice, Lost):
            level = logging.WARNING if notice.reason.startswith("failed: ") else logging.INFO
            _log.log(level, "lost %s (life %d): %s", notice.device, notice.incarnation, notice.reason)
            self.station.carrier.forget(notice.device)
        else:
            _log.info("%s is here (life %d)", notice.device, notice.incarnation)
            if self._clock.zero is not None:
                self.station.carrier.say(notice.device, Begin(self._clock.zero), notice.incarnation)
        self.station.node.deliver(Envelope(COORDINATOR, 0, notice))

    async def _spread_roster(self) -> None:
        """Now and then again, for those who missed it."""
        while self._direct:
            await asyncio.sleep(_ROSTER_EVERY_S)
            self._send_roster()

    def _send_roster(self) -> None:
        here = self._state.here()
        for name, life in here.items():
            self.station.carrier.say(name, Roster(self._state.epoch, here), life)


async def _nothing() -> None:
    pass
