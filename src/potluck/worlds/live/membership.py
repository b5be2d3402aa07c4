"""Who is here, as a pure state machine: (now, state, event) → (state, notices). No clock, no socket.

    Greeted ──▶ expected ──Ready──▶ here ──┬─ Vanished (its token is gone), Left, Expired (silent for the lease),
                                           │  Offended (too often) or greeted again
                                           └──▶ lost; who is lost too often has to stay away for a while

Each life of a device is an incarnation, numbered by the coordinator; each change of who is here is an epoch. Whatever
is heard of another life than the present one changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from potluck.loops.messages import Joined, Lost

__all__ = [
    "Event", "Greeted", "Heard", "Left", "Member", "Offended", "Ready", "Rules", "State", "Tick", "Turned", "Vanished",
    "greet", "step",
]  # fmt: skip


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often."""

    lease: float  # until a silent device is taken for lost
    offences: int = 3  # malformed messages until a device is sent away
    losses: int = 5  # of one device within `window` until it must stay away
    window: float = 60.0
    back_off: float = 1.0  # how long, at first; doubles each time
    longest: float = 300.0


class Member(msgspec.Struct, frozen=True):
    """One life of a device."""

    incarnation: int
    body: str  # the process it lives in
    heard_at: float
    ready: bool = False
    offences: int = 0


class Record(msgspec.Struct, frozen=True):
    """What is remembered of a device beyond its life."""

    incarnation: int = 0
    lost_at: tuple[float, ...] = ()
    banished: int = 0
    away_until: float = 0.0


class State(msgspec.Struct, frozen=True):
    """Who is here or expected, and what is remembered of all."""

    epoch: int = 0
    members: Mapping[str, Member] = {}
    records: Mapping[str, Record] = {}
    ticked_at: float | None = None

    def here(self) -> dict[str, int]:
        return {name: member.incarnation for name, member in self.members.items() if member.ready}

    def life(self, name: str) -> int:
        """The device's present incarnation, 0 for none."""
        member = self.members.get(name)
        return member.incarnation if member is not None else 0


class Greeted(NamedTuple):
    """A device was let in."""

    name: str
    body: str


class Ready(NamedTuple):
    """It has everything set up, and can be spoken to."""

    name: str
    incarnation: int


class Heard(NamedTuple):
    """It gave a sign of life."""

    name: str
    incarnation: int


class Vanished(NamedTuple):
    """Its token is gone: the connection broke."""

    name: str
    incarnation: int


class Left(NamedTuple):
    """It said goodbye; `failed` if an error ended it."""

    name: str
    incarnation: int
    reason: str
    failed: bool = False


class Offended(NamedTuple):
    """It sent what it may not send."""

    name: str
    incarnation: int
    reason: str


class Tick(NamedTuple):
    """Time has passed."""


Event = Greeted | Ready | Heard | Vanished | Left | Offended | Tick
Notice = Joined | Lost


class Turned(NamedTuple):
    """Why a device is not let in now, and when it may ask again."""

    reason: str
    retry_s: float


def greet(now: float, state: State, name: str, body: str, rules: Rules) -> Turned | None:
    """Whether a device has to wait before it is let in."""
    wait = state.records.get(name, Record()).away_until - now
    if wait > 0:
        return Turned(f"{name} was lost too often; it may come again in {wait:.1f} s", wait)
    member = state.members.get(name)
    if member is not None and member.ready and member.body != body and now - member.heard_at < rules.lease:
        return Turned(f"another device called {name} is here", min(rules.lease / 4, 1.0))
    return None


def step(now: float, state: State, event: Event, rules: Rules) -> tuple[State, list[Notice]]:
    """What an event changes, and what has to be told to everybody."""
    match event:
        case Greeted():
            return _greeted(now, state, event, rules)
        case Tick():
            return _tick(now, state, rules)
    member = state.members.get(event.name)
    if member is None or member.incarnation != event.incarnation:
        return state, []
    match event:
        case Ready(name=name):
            return _ready(now, state, name, member)
        case Heard(name=name):
            return _with(state, name, msgspec.structs.replace(member, heard_at=now)), []
        case Left(name=name, reason=reason, failed=failed):
            return _lose(_strike(now, state, name, rules) if failed else state, name, reason)
        case Vanished(name=name):
            return _lose(_strike(now, state, name, rules), name, "its connection broke")
        case Offended(name=name, reason=reason):
            return _offended(now, state, name, member, reason, rules)


def _greeted(now: float, state: State, event: Greeted, rules: Rules) -> tuple[State, list[Notice]]:
    """A new life; the one before is over, whether that was noticed or not."""
    if state.life(event.name):
        state = _strike(now, state, event.name, rules)
    state, notices = _lose(state, event.name, "restarted")
    record = state.records.get(event.name, Record())
    record = msgspec.structs.replace(record, incarnation=record.incarnation + 1)
    state = msgspec.structs.replace(state, records={**state.records, event.name: record})
    return _with(state, event.name, Member(record.incarnation, event.body, now)), notices


def _ready(now: float, state: State, name: str, member: Member) -> tuple[State, list[Notice]]:
    state = _with(state, name, msgspec.structs.replace(member, heard_at=now, ready=True))
    if member.ready:
        return state, []
    return _next_epoch(state), [Joined(name, member.incarnation)]


def _offended(
    now: float, state: State, name: str, member: Member, reason: str, rules: Rules
) -> tuple[State, list[Notice]]:
    member = msgspec.structs.replace(member, offences=member.offences + 1)
    if member.offences < rules.offences:
        return _with(state, name, member), []
    return _lose(_banish(now, state, name, rules), name, f"sent {member.offences} messages that are none: {reason}")


def _tick(now: float, state: State, rules: Rules) -> tuple[State, list[Notice]]:
    """Take the silent for lost; but while we were not looking ourselves, nobody could be heard."""
    unseen = now - state.ticked_at if state.ticked_at is not None else 0.0
    if unseen > rules.lease / 2:
        members = {
            name: msgspec.structs.replace(member, heard_at=member.heard_at + unseen)
            for name, member in state.members.items()
        }
        return msgspec.structs.replace(state, members=members, ticked_at=now), []
    notices: list[Notice] = []
    state = msgspec.structs.replace(state, ticked_at=now)
    for name, member in list(state.members.items()):
        if now - member.heard_at > rules.lease:
            state, more = _lose(_strike(now, state, name, rules), name, "silent for longer than the lease")
            notices += more
    return state, notices


def _lose(state: State, name: str, reason: str) -> tuple[State, list[Notice]]:
    member = state.members.get(name)
    if member is None:
        return state, []
    others = {other: life for other, life in state.members.items() if other != name}
    state = msgspec.structs.replace(state, members=others)
    return (_next_epoch(state), [Lost(name, member.incarnation, reason)]) if member.ready else (state, [])


def _strike(now: float, state: State, name: str, rules: Rules) -> State:
    """Lost out of order: remember it, and send away whom it happens to all the time."""
    record = state.records.get(name, Record())
    lost_at = (*(at for at in record.lost_at if now - at < rules.window), now)
    record = msgspec.structs.replace(record, lost_at=lost_at)
    state = msgspec.structs.replace(state, records={**state.records, name: record})
    return _banish(now, state, name, rules) if len(lost_at) >= rules.losses else state


def _banish(now: float, state: State, name: str, rules: Rules) -> State:
    record = state.records.get(name, Record())
    wait = min(rules.back_off * 2**record.banished, rules.longest)
    record = msgspec.structs.replace(record, banished=record.banished + 1, away_until=now + wait, lost_at=())
    return msgspec.structs.replace(state, records={**state.records, name: record})


def _with(state: State, name: str, member: Member) -> State:
    return msgspec.structs.replace(state, members={**state.members, name: member})


def _next_epoch(state: State) -> State:
    return msgspec.structs.replace(state, epoch=state.epoch + 1)
