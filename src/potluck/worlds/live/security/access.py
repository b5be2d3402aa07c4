"""A device may only speak as itself: Zenoh's access control, from the tree of keys and the names in certificates.

All is denied that is not allowed here. The coordinator's session enforces it on every link, by the common name of the
certificate at the other end, whatever the device's own software says:

    device pi-3 says   potluck/*/from/pi-3/to/*/*      hears  potluck/*/from/*/to/pi-3/*
                asks   potluck/door/pi-3, …/clock/pi-3 shows  potluck/*/alive/pi-3/*
    anyone      asks   potluck/lobby/{name}            why it is not let in (any certificate of our authority)

Where devices speak to each other directly the coordinator is not in between, so each of them enforces its own share:
from the coordinator's link the mirror image of the above, from another device's link only what that device says to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from potluck.worlds.live.keys import ANY, alive, clock, door, inbox, lane_between, outbox
from potluck.worlds.live.security.certs import device_of

__all__ = ["config", "device_config", "lobby", "stranger"]

_COORDINATOR = "coordinator"
_ANYONE, _ADMITTED = "anyone", "admitted"


def lobby(name: str) -> str:
    """Where a device asks why nobody opens the door; answered with one sentence."""
    return door(name).replace("/door/", "/lobby/")


def config(admitted: Mapping[str, str], era: str = ANY) -> dict[str, Any]:
    """Zenoh's `access_control` for the coordinator; `admitted` has the common name of each device's certificate."""
    own = {name: list(_own_rules(name, era)) for name in admitted}
    shared, open_to_all = list(_shared_rules(era)), list(_lobby_rules())
    policies = [_policy(_ANYONE, open_to_all, [_ANYONE])]
    if admitted:
        policies.append(_policy(_ADMITTED, shared, [_device(name) for name in admitted]))
    policies += [_policy(_device(name), rules, [_device(name)]) for name, rules in own.items()]
    rules = [*open_to_all, *shared, *(rule for rules in own.values() for rule in rules)]
    return _control(rules, [{"id": _ANYONE}, *_subjects(admitted)], policies)


def device_config(name: str, admitted: Mapping[str, str], era: str = ANY) -> dict[str, Any]:
    """Zenoh's `access_control` for a device that others may call."""
    others = {other: bears for other, bears in admitted.items() if other != name}
    mirrored = [_mirrored(rule) for rule in (*_lobby_rules(), *_shared_rules(era), *_own_rules(name, era))]
    between = {other: list(_direct_rules(name, other, era)) for other in others}
    policies = [_policy(_COORDINATOR, mirrored, [_COORDINATOR])]
    policies += [_policy(_device(other), rules, [_device(other)]) for other, rules in between.items()]
    rules = [*mirrored, *(rule for rules in between.values() for rule in rules)]
    return _control(rules, [{"id": _COORDINATOR, "cert_common_names": [_COORDINATOR]}, *_subjects(others)], policies)


def stranger(common_name: str, admitted: Mapping[str, str]) -> str | None:
    """Why a link with this certificate is of no use, for the log; None where it is one of ours."""
    if common_name in (*admitted.values(), _COORDINATOR):
        return None
    if device_of(common_name) in admitted:
        return f"its certificate ({common_name}) was revoked; nothing that it says is heard"
    return f"its certificate ({common_name}) is of no device of this run's fleet; nothing that it says is heard"


def _own_rules(name: str, era: str) -> Iterator[dict[str, Any]]:
    """What one device may do and nobody else."""
    asks = [door(name), clock(era, name)]
    yield _rule(f"{_device(name)} asks", "ingress", ["query"], asks)
    yield _rule(f"{_device(name)} is answered", "egress", ["reply"], asks)
    yield _rule(f"{_device(name)} says", "ingress", ["put"], [outbox(era, name)])
    yield _rule(f"{_device(name)} listens", "ingress", ["declare_subscriber"], [inbox(era, name)])
    yield _rule(f"{_device(name)} hears", "egress", ["put"], [inbox(era, name)])
    yield _rule(f"{_device(name)} lives", "ingress", ["liveliness_token"], [alive(era, name, ANY)])


def _shared_rules(era: str) -> Iterator[dict[str, Any]]:
    """What every admitted device has to know: who listens where, and whether the coordinator lives."""
    heart = [alive(era, _COORDINATOR, ANY)]
    watch = ["declare_liveliness_subscriber", "liveliness_query"]
    yield _rule("who listens", "egress", ["declare_subscriber"], [inbox(era, ANY)])
    yield _rule("who answers", "egress", ["declare_queryable"], [door(ANY), clock(era, ANY)])
    yield _rule("who watches", "egress", watch, [alive(era, ANY, ANY)])
    yield _rule("watches the coordinator", "ingress", watch, heart)
    yield _rule("the coordinator lives", "egress", ["liveliness_token"], heart)


def _lobby_rules() -> Iterator[dict[str, Any]]:
    yield _rule("asks why", "ingress", ["query"], [lobby(ANY)])
    yield _rule("is told why", "egress", ["reply", "declare_queryable"], [lobby(ANY)])


def _direct_rules(name: str, other: str, era: str) -> Iterator[dict[str, Any]]:
    """What goes over a link between two devices, as the first of them sees it."""
    yield _rule(f"{_device(other)} says", "ingress", ["put"], [lane_between(era, other, name, ANY)])
    yield _rule(f"{_device(other)} listens", "ingress", ["declare_subscriber"], [inbox(era, other)])
    yield _rule(f"{_device(other)} is told", "egress", ["put"], [lane_between(era, name, other, ANY)])
    yield _rule(f"{_device(other)} knows", "egress", ["declare_subscriber"], [inbox(era, name)])


def _mirrored(rule: dict[str, Any]) -> dict[str, Any]:
    """The same rule as seen from the other end of the link."""
    return {**rule, "flows": ["egress" if flow == "ingress" else "ingress" for flow in rule["flows"]]}


def _device(name: str) -> str:
    """A name among Zenoh's that no other of ours can equal, since a device's name has no space in it."""
    return f"device {name}"


def _control(rules: list[Any], subjects: list[Any], policies: list[Any]) -> dict[str, Any]:
    return {
        "enabled": True, "default_permission": "deny", "rules": rules, "subjects": subjects, "policies": policies,
    }  # fmt: skip


def _subjects(admitted: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"id": _device(name), "cert_common_names": [bears]} for name, bears in admitted.items()]


def _rule(name: str, flow: str, messages: list[str], keys: list[str]) -> dict[str, Any]:
    return {"id": name, "permission": "allow", "flows": [flow], "messages": messages, "key_exprs": keys}


def _policy(name: str, rules: list[dict[str, Any]], subjects: list[str]) -> dict[str, Any]:
    return {"id": name, "rules": [rule["id"] for rule in rules], "subjects": subjects}
