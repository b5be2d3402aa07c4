"""Zenoh access control, so that a device can send only as itself: built from key expressions and certificate names.

Everything that is not allowed is denied. The coordinator's session enforces the rules on every link by the common name
of the peer's certificate, whatever the device's own software claims:

    device pi-3  sends    potluck/*/from/pi-3/to/*/*        receives  potluck/*/from/*/to/pi-3/*
                 queries  potluck/door/pi-3, …/clock/pi-3   declares  potluck/*/alive/pi-3/*
    anyone       queries  potluck/lobby/{name}              with any certificate of the fleet's authority
    standby      queries  potluck/standby                   with the coordinator's certificate

Where devices connect to each other directly, the coordinator is not in between, so each device enforces rules too: on
the coordinator's link the mirror image of the above, on another device's link only what that device sends to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from potluck.fleet.fleet_devices import COORDINATOR
from potluck.worlds.live.key_expressions import (
    ANY,
    admission_key,
    clock_key,
    inbox_key,
    lane_key,
    liveliness_key,
    outbox_key,
    refusal_reason_key,
    standby_key,
)
from potluck.worlds.live.security.tls_credentials import device_of_common_name, revocations_before

__all__ = ["coordinator_access", "device_access", "unadmitted_reason"]

_ANYONE, _ADMITTED = "anyone", "admitted"


def coordinator_access(common_names: Mapping[str, str], era: str = ANY) -> dict[str, Any]:
    """Zenoh's `access_control` for the coordinator; `common_names` are those of the devices' certificates."""
    own_rules = {name: list(_device_rules(name, era)) for name in common_names}
    shared_rules, public_rules = list(_shared_rules(era)), list(_refusal_reason_rules())
    policies = [_access_policy(_ANYONE, public_rules, [_ANYONE])]
    if common_names:
        policies.append(_access_policy(_ADMITTED, shared_rules, [_subject_id(name) for name in common_names]))
    policies += [_access_policy(_subject_id(name), rules, [_subject_id(name)]) for name, rules in own_rules.items()]
    standby_rules = list(_standby_rules())
    policies.append(_access_policy(COORDINATOR, standby_rules, [COORDINATOR]))
    rules = [*public_rules, *shared_rules, *standby_rules, *(rule for rules in own_rules.values() for rule in rules)]
    coordinator = {"id": COORDINATOR, "cert_common_names": [COORDINATOR]}
    return _access_settings(rules, [{"id": _ANYONE}, coordinator, *_device_subjects(common_names)], policies)


def device_access(name: str, common_names: Mapping[str, str], era: str = ANY) -> dict[str, Any]:
    """Zenoh's `access_control` for a device that accepts connections."""
    peers = {other: common_name for other, common_name in common_names.items() if other != name}
    mirrored = [
        _mirror_rule(rule) for rule in (*_refusal_reason_rules(), *_shared_rules(era), *_device_rules(name, era))
    ]
    peer_rules = {other: list(_peer_link_rules(name, other, era)) for other in peers}
    policies = [_access_policy(COORDINATOR, mirrored, [COORDINATOR])]
    policies += [_access_policy(_subject_id(other), rules, [_subject_id(other)]) for other, rules in peer_rules.items()]
    rules = [*mirrored, *(rule for rules in peer_rules.values() for rule in rules)]
    return _access_settings(
        rules, [{"id": COORDINATOR, "cert_common_names": [COORDINATOR]}, *_device_subjects(peers)], policies
    )


def unadmitted_reason(common_name: str, common_names: Mapping[str, str]) -> str | None:
    """Why nothing is accepted from a link with this certificate, for the log; None if it is admitted."""
    if common_name in (*common_names.values(), COORDINATOR):
        return None
    admitted = common_names.get(device_of_common_name(common_name))
    if admitted is not None and revocations_before(common_name) > revocations_before(admitted):
        return (
            f"its certificate ({common_name}) was issued after this run started with {admitted};"
            f" start the coordinator again with `potluck resume` to admit it"
        )
    if admitted is not None:
        return f"its certificate ({common_name}) was revoked; everything it sends is dropped"
    return f"its certificate ({common_name}) names no device of this run's fleet; everything it sends is dropped"


def _device_rules(name: str, era: str) -> Iterator[dict[str, Any]]:
    """What only this device may do."""
    queries = [admission_key(name), clock_key(era, name)]
    yield _allow_rule(f"{_subject_id(name)} queries", "ingress", ["query"], queries)
    yield _allow_rule(f"{_subject_id(name)} gets replies", "egress", ["reply"], queries)
    yield _allow_rule(f"{_subject_id(name)} sends", "ingress", ["put"], [outbox_key(era, name)])
    yield _allow_rule(f"{_subject_id(name)} subscribes", "ingress", ["declare_subscriber"], [inbox_key(era, name)])
    yield _allow_rule(f"{_subject_id(name)} receives", "egress", ["put"], [inbox_key(era, name)])
    yield _allow_rule(
        f"{_subject_id(name)} is alive", "ingress", ["liveliness_token"], [liveliness_key(era, name, ANY)]
    )


def _shared_rules(era: str) -> Iterator[dict[str, Any]]:
    """What every admitted device needs: the declarations of subscribers, and whether the coordinator is alive."""
    coordinator_token = [liveliness_key(era, COORDINATOR, ANY)]
    watching = ["declare_liveliness_subscriber", "liveliness_query"]
    yield _allow_rule("subscriptions", "egress", ["declare_subscriber"], [inbox_key(era, ANY)])
    yield _allow_rule("queryables", "egress", ["declare_queryable"], [admission_key(ANY), clock_key(era, ANY)])
    yield _allow_rule("liveliness subscriptions", "egress", watching, [liveliness_key(era, ANY, ANY)])
    yield _allow_rule("watch the coordinator", "ingress", watching, coordinator_token)
    yield _allow_rule("the coordinator is alive", "egress", ["liveliness_token"], coordinator_token)


def _refusal_reason_rules() -> Iterator[dict[str, Any]]:
    yield _allow_rule("query the refusal reason", "ingress", ["query"], [refusal_reason_key(ANY)])
    yield _allow_rule("reply the refusal reason", "egress", ["reply", "declare_queryable"], [refusal_reason_key(ANY)])


def _standby_rules() -> Iterator[dict[str, Any]]:
    yield _allow_rule("copy the run", "ingress", ["query"], [standby_key()])
    yield _allow_rule("reply to a standby", "egress", ["reply", "declare_queryable"], [standby_key()])


def _peer_link_rules(name: str, other: str, era: str) -> Iterator[dict[str, Any]]:
    """What `name` allows on its link to the device `other`."""
    yield _allow_rule(f"{_subject_id(other)} sends", "ingress", ["put"], [lane_key(era, other, name, ANY)])
    yield _allow_rule(f"{_subject_id(other)} subscribes", "ingress", ["declare_subscriber"], [inbox_key(era, other)])
    yield _allow_rule(f"{_subject_id(other)} receives", "egress", ["put"], [lane_key(era, name, other, ANY)])
    yield _allow_rule(
        f"{_subject_id(other)} sees the subscription", "egress", ["declare_subscriber"], [inbox_key(era, name)]
    )


def _mirror_rule(rule: dict[str, Any]) -> dict[str, Any]:
    """The same rule for the other end of the link."""
    return {**rule, "flows": ["egress" if flow == "ingress" else "ingress" for flow in rule["flows"]]}


def _subject_id(name: str) -> str:
    """A Zenoh id that cannot equal another one, since a device's name has no space."""
    return f"device {name}"


def _access_settings(rules: list[Any], subjects: list[Any], policies: list[Any]) -> dict[str, Any]:
    return {
        "enabled": True, "default_permission": "deny", "rules": rules, "subjects": subjects, "policies": policies,
    }  # fmt: skip


def _device_subjects(common_names: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"id": _subject_id(name), "cert_common_names": [common_name]} for name, common_name in common_names.items()]


def _allow_rule(name: str, flow: str, messages: list[str], keys: list[str]) -> dict[str, Any]:
    return {"id": name, "permission": "allow", "flows": [flow], "messages": messages, "key_exprs": keys}


def _access_policy(name: str, rules: list[dict[str, Any]], subjects: list[str]) -> dict[str, Any]:
    return {"id": name, "rules": [rule["id"] for rule in rules], "subjects": subjects}
