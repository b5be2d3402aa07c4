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

from potluck.worlds.live.key_expressions import (
    ANY,
    admission_key,
    clock_key,
    inbox_key,
    lane_key,
    liveliness_key,
    outbox_key,
)
from potluck.worlds.live.security.tls_credentials import device_of_common_name

__all__ = ["coordinator_access", "device_access", "refusal_reason_key", "unadmitted_reason"]

_COORDINATOR = "coordinator"
_ANYONE, _ADMITTED = "anyone", "admitted"


def refusal_reason_key(name: str) -> str:
    """Where a device asks why nobody opens the door; answered with one sentence."""
    return admission_key(name).replace("/door/", "/lobby/")


def coordinator_access(admitted: Mapping[str, str], era: str = ANY) -> dict[str, Any]:
    """Zenoh's `access_control` for the coordinator; `admitted` has the common name of each device's certificate."""
    own = {name: list(_device_rules(name, era)) for name in admitted}
    shared, open_to_all = list(_shared_rules(era)), list(_refusal_reason_rules())
    policies = [_access_policy(_ANYONE, open_to_all, [_ANYONE])]
    if admitted:
        policies.append(_access_policy(_ADMITTED, shared, [_subject_id(name) for name in admitted]))
    policies += [_access_policy(_subject_id(name), rules, [_subject_id(name)]) for name, rules in own.items()]
    rules = [*open_to_all, *shared, *(rule for rules in own.values() for rule in rules)]
    return _access_settings(rules, [{"id": _ANYONE}, *_device_subjects(admitted)], policies)


def device_access(name: str, admitted: Mapping[str, str], era: str = ANY) -> dict[str, Any]:
    """Zenoh's `access_control` for a device that others may call."""
    others = {other: bears for other, bears in admitted.items() if other != name}
    mirrored = [
        _mirror_rule(rule) for rule in (*_refusal_reason_rules(), *_shared_rules(era), *_device_rules(name, era))
    ]
    between = {other: list(_peer_link_rules(name, other, era)) for other in others}
    policies = [_access_policy(_COORDINATOR, mirrored, [_COORDINATOR])]
    policies += [_access_policy(_subject_id(other), rules, [_subject_id(other)]) for other, rules in between.items()]
    rules = [*mirrored, *(rule for rules in between.values() for rule in rules)]
    return _access_settings(
        rules, [{"id": _COORDINATOR, "cert_common_names": [_COORDINATOR]}, *_device_subjects(others)], policies
    )


def unadmitted_reason(common_name: str, admitted: Mapping[str, str]) -> str | None:
    """Why a link with this certificate is of no use, for the log; None where it is one of ours."""
    if common_name in (*admitted.values(), _COORDINATOR):
        return None
    if device_of_common_name(common_name) in admitted:
        return f"its certificate ({common_name}) was revoked; nothing that it says is heard"
    return f"its certificate ({common_name}) is of no device of this run's fleet; nothing that it says is heard"


def _device_rules(name: str, era: str) -> Iterator[dict[str, Any]]:
    """What one device may do and nobody else."""
    asks = [admission_key(name), clock_key(era, name)]
    yield _allow_rule(f"{_subject_id(name)} asks", "ingress", ["query"], asks)
    yield _allow_rule(f"{_subject_id(name)} is answered", "egress", ["reply"], asks)
    yield _allow_rule(f"{_subject_id(name)} says", "ingress", ["put"], [outbox_key(era, name)])
    yield _allow_rule(f"{_subject_id(name)} listens", "ingress", ["declare_subscriber"], [inbox_key(era, name)])
    yield _allow_rule(f"{_subject_id(name)} hears", "egress", ["put"], [inbox_key(era, name)])
    yield _allow_rule(f"{_subject_id(name)} lives", "ingress", ["liveliness_token"], [liveliness_key(era, name, ANY)])


def _shared_rules(era: str) -> Iterator[dict[str, Any]]:
    """What every admitted device has to know: who listens where, and whether the coordinator lives."""
    heart = [liveliness_key(era, _COORDINATOR, ANY)]
    watch = ["declare_liveliness_subscriber", "liveliness_query"]
    yield _allow_rule("who listens", "egress", ["declare_subscriber"], [inbox_key(era, ANY)])
    yield _allow_rule("who answers", "egress", ["declare_queryable"], [admission_key(ANY), clock_key(era, ANY)])
    yield _allow_rule("who watches", "egress", watch, [liveliness_key(era, ANY, ANY)])
    yield _allow_rule("watches the coordinator", "ingress", watch, heart)
    yield _allow_rule("the coordinator lives", "egress", ["liveliness_token"], heart)


def _refusal_reason_rules() -> Iterator[dict[str, Any]]:
    yield _allow_rule("asks why", "ingress", ["query"], [refusal_reason_key(ANY)])
    yield _allow_rule("is told why", "egress", ["reply", "declare_queryable"], [refusal_reason_key(ANY)])


def _peer_link_rules(name: str, other: str, era: str) -> Iterator[dict[str, Any]]:
    """What goes over a link between two devices, as the first of them sees it."""
    yield _allow_rule(f"{_subject_id(other)} says", "ingress", ["put"], [lane_key(era, other, name, ANY)])
    yield _allow_rule(f"{_subject_id(other)} listens", "ingress", ["declare_subscriber"], [inbox_key(era, other)])
    yield _allow_rule(f"{_subject_id(other)} is told", "egress", ["put"], [lane_key(era, name, other, ANY)])
    yield _allow_rule(f"{_subject_id(other)} knows", "egress", ["declare_subscriber"], [inbox_key(era, name)])


def _mirror_rule(rule: dict[str, Any]) -> dict[str, Any]:
    """The same rule as seen from the other end of the link."""
    return {**rule, "flows": ["egress" if flow == "ingress" else "ingress" for flow in rule["flows"]]}


def _subject_id(name: str) -> str:
    """A name among Zenoh's that no other of ours can equal, since a device's name has no space in it."""
    return f"device {name}"


def _access_settings(rules: list[Any], subjects: list[Any], policies: list[Any]) -> dict[str, Any]:
    return {
        "enabled": True, "default_permission": "deny", "rules": rules, "subjects": subjects, "policies": policies,
    }  # fmt: skip


def _device_subjects(admitted: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"id": _subject_id(name), "cert_common_names": [bears]} for name, bears in admitted.items()]


def _allow_rule(name: str, flow: str, messages: list[str], keys: list[str]) -> dict[str, Any]:
    return {"id": name, "permission": "allow", "flows": [flow], "messages": messages, "key_exprs": keys}


def _access_policy(name: str, rules: list[dict[str, Any]], subjects: list[str]) -> dict[str, Any]:
    return {"id": name, "rules": [rule["id"] for rule in rules], "subjects": subjects}
