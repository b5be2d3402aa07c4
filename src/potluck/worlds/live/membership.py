"""Membership as a pure state machine: (now, state, event) → (state, notices). No clock, no socket.

    DeviceAdmitted ──▶ admitted ──DeviceReady──▶ ready ──┬─ ConnectionBroken, DeviceLeft, lease expired (LeaseTick),
                                                         │  ProtocolViolated (repeatedly) or DeviceAdmitted again
                                                         └──▶ lost; a device lost too often is quarantined

The coordinator numbers the incarnations of a device; every change of the set of ready devices starts a new epoch.
Events of an incarnation that is not the current one have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from potluck.loops.messages import Joined, Lost

__all__ = [
    "ConnectionBroken",
    "DeviceAdmitted",
    "DeviceHeard",
    "DeviceLeft",
    "DeviceReady",
    "Event",
    "JoinDeferred",
    "LeaseTick",
    "Member",
    "MembershipRules",
    "MembershipState",
    "ProtocolViolated",
    "apply_event",
    "check_join_deferral",
]  # fmt: skip


class MembershipRules(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that decide when a device is lost or quarantined."""

    lease: float  # until a silent device is considered lost
    max_violations: int = 3  # malformed messages until a device is quarantined
    max_losses: int = 5  # of one device within `loss_window_s` until it is quarantined
    loss_window_s: float = 60.0
    first_quarantine_s: float = 1.0  # doubles each time
    longest_quarantine_s: float = 300.0


class Member(msgspec.Struct, frozen=True):
    """The current incarnation of a device."""

    incarnation: int
    process_secret: str  # tells its process apart from another one of the same name
    heard_at: float
    ready: bool = False
    violations: int = 0


class MembershipHistory(msgspec.Struct, frozen=True):
    """What is kept of a device across its incarnations."""

    incarnation: int = 0
    lost_at: tuple[float, ...] = ()
    quarantine_count: int = 0
    quarantined_until: float = 0.0


class MembershipState(msgspec.Struct, frozen=True):
    """The devices that are admitted or ready, and the history of all devices."""

    epoch: int = 0
    members: Mapping[str, Member] = {}
    histories: Mapping[str, MembershipHistory] = {}
    ticked_at: float | None = None

    def ready_devices(self) -> dict[str, int]:
        return {name: member.incarnation for name, member in self.members.items() if member.ready}

    def quarantine_s(self, name: str, now: float) -> float:
        """For how long the device may not join; 0 or less if it may."""
        return self.histories.get(name, MembershipHistory()).quarantined_until - now

    def incarnation_of(self, name: str) -> int:
        """The device's current incarnation, 0 for none."""
        member = self.members.get(name)
        return member.incarnation if member is not None else 0


class DeviceAdmitted(NamedTuple):
    """The device's join request was accepted."""

    name: str
    process_secret: str


class DeviceReady(NamedTuple):
    """The device is set up and waits for messages."""

    name: str
    incarnation: int


class DeviceHeard(NamedTuple):
    """The device sent something."""

    name: str
    incarnation: int


class ConnectionBroken(NamedTuple):
    """The device's liveliness token is gone."""

    name: str
    incarnation: int


class DeviceLeft(NamedTuple):
    """The device sent a leave notice; `failed` if an error ended it."""

    name: str
    incarnation: int
    reason: str
    failed: bool = False


class ProtocolViolated(NamedTuple):
    """The device sent an invalid message."""

    name: str
    incarnation: int
    reason: str


class LeaseTick(NamedTuple):
    """Check the leases."""


Event = DeviceAdmitted | DeviceReady | DeviceHeard | ConnectionBroken | DeviceLeft | ProtocolViolated | LeaseTick
Notice = Joined | Lost


class JoinDeferred(NamedTuple):
    """Why a device cannot join now, and when it may ask again."""

    reason: str
    retry_s: float


def check_join_deferral(
    now: float, state: MembershipState, name: str, process_secret: str, rules: MembershipRules
) -> JoinDeferred | None:
    """Whether a device has to wait before it may join."""
    wait = state.quarantine_s(name, now)
    if wait > 0:
        return JoinDeferred(f"{name} was lost too often; it may join again in {wait:.1f} s", wait)
    member = state.members.get(name)
    if (
        member is not None
        and member.ready
        and member.process_secret != process_secret
        and now - member.heard_at < rules.lease
    ):
        return JoinDeferred(f"another device called {name} is connected", min(rules.lease / 4, 1.0))
    return None


def apply_event(
    now: float, state: MembershipState, event: Event, rules: MembershipRules
) -> tuple[MembershipState, list[Notice]]:
    """The state after an event, and the notices for the loop."""
    match event:
        case DeviceAdmitted():
            return _on_admitted(now, state, event, rules)
        case LeaseTick():
            return _expire_leases(now, state, rules)
    member = state.members.get(event.name)
    if member is None or member.incarnation != event.incarnation:
        return state, []
    match event:
        case DeviceReady(name=name):
            return _on_ready(now, state, name, member)
        case DeviceHeard(name=name):
            return _with_member(state, name, msgspec.structs.replace(member, heard_at=now)), []
        case DeviceLeft(name=name, reason=reason, failed=failed):
            return _remove_member(_record_loss(now, state, name, rules) if failed else state, name, reason)
        case ConnectionBroken(name=name):
            return _remove_member(_record_loss(now, state, name, rules), name, "its connection broke")
        case ProtocolViolated(name=name, reason=reason):
            return _on_violation(now, state, name, member, reason, rules)


def _on_admitted(
    now: float, state: MembershipState, event: DeviceAdmitted, rules: MembershipRules
) -> tuple[MembershipState, list[Notice]]:
    """Start a new incarnation; the previous one has ended, whether that was noticed or not."""
    if state.incarnation_of(event.name):
        state = _record_loss(now, state, event.name, rules)
    state, notices = _remove_member(state, event.name, "restarted")
    record = state.histories.get(event.name, MembershipHistory())
    record = msgspec.structs.replace(record, incarnation=record.incarnation + 1)
    state = msgspec.structs.replace(state, histories={**state.histories, event.name: record})
    return _with_member(state, event.name, Member(record.incarnation, event.process_secret, now)), notices


def _on_ready(now: float, state: MembershipState, name: str, member: Member) -> tuple[MembershipState, list[Notice]]:
    state = _with_member(state, name, msgspec.structs.replace(member, heard_at=now, ready=True))
    if member.ready:
        return state, []
    return _next_epoch(state), [Joined(name, member.incarnation)]


def _on_violation(
    now: float, state: MembershipState, name: str, member: Member, reason: str, rules: MembershipRules
) -> tuple[MembershipState, list[Notice]]:
    member = msgspec.structs.replace(member, violations=member.violations + 1)
    if member.violations < rules.max_violations:
        return _with_member(state, name, member), []
    return _remove_member(
        _quarantine_device(now, state, name, rules), name, f"sent {member.violations} invalid messages: {reason}"
    )


def _expire_leases(now: float, state: MembershipState, rules: MembershipRules) -> tuple[MembershipState, list[Notice]]:
    """Consider silent devices lost; but while this process itself was stalled, it could not hear any."""
    stalled_s = now - state.ticked_at if state.ticked_at is not None else 0.0
    if stalled_s > rules.lease / 2:
        members = {
            name: msgspec.structs.replace(member, heard_at=member.heard_at + stalled_s)
            for name, member in state.members.items()
        }
        return msgspec.structs.replace(state, members=members, ticked_at=now), []
    notices: list[Notice] = []
    state = msgspec.structs.replace(state, ticked_at=now)
    for name, member in list(state.members.items()):
        if now - member.heard_at > rules.lease:
            state, more = _remove_member(
                _record_loss(now, state, name, rules), name, "silent for longer than the lease"
            )
            notices += more
    return state, notices


def _remove_member(state: MembershipState, name: str, reason: str) -> tuple[MembershipState, list[Notice]]:
    member = state.members.get(name)
    if member is None:
        return state, []
    others = {other: kept for other, kept in state.members.items() if other != name}
    state = msgspec.structs.replace(state, members=others)
    return (_next_epoch(state), [Lost(name, member.incarnation, reason)]) if member.ready else (state, [])


def _record_loss(now: float, state: MembershipState, name: str, rules: MembershipRules) -> MembershipState:
    """Remember an unexpected loss, and quarantine a device that is lost too often."""
    record = state.histories.get(name, MembershipHistory())
    lost_at = (*(at for at in record.lost_at if now - at < rules.loss_window_s), now)
    record = msgspec.structs.replace(record, lost_at=lost_at)
    state = msgspec.structs.replace(state, histories={**state.histories, name: record})
    return _quarantine_device(now, state, name, rules) if len(lost_at) >= rules.max_losses else state


def _quarantine_device(now: float, state: MembershipState, name: str, rules: MembershipRules) -> MembershipState:
    record = state.histories.get(name, MembershipHistory())
    wait = min(rules.first_quarantine_s * 2**record.quarantine_count, rules.longest_quarantine_s)
    record = msgspec.structs.replace(
        record, quarantine_count=record.quarantine_count + 1, quarantined_until=now + wait, lost_at=()
    )
    return msgspec.structs.replace(state, histories={**state.histories, name: record})


def _with_member(state: MembershipState, name: str, member: Member) -> MembershipState:
    return msgspec.structs.replace(state, members={**state.members, name: member})


def _next_epoch(state: MembershipState) -> MembershipState:
    return msgspec.structs.replace(state, epoch=state.epoch + 1)
