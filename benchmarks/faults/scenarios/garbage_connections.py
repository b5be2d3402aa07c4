"""Somebody opens connections that are no device's, from the address of the devices, while others join and train."""

from __future__ import annotations

import secrets
import time

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from benchmarks.faults.process_fleet import ProcessFleet, rounds_job
from benchmarks.faults.stray_connections import stray_connections
from potluck.worlds.live import handshake_messages, key_expressions
from potluck.worlds.live.connections.shared_port import is_supported
from potluck.worlds.live.handshake_messages import JoinRequest
from potluck.worlds.live.zenoh_session import Endpoint, EndpointError, open_session

__all__ = ["SCENARIO"]

_MAX_JOIN_S = 2.0
_GIVE_UP_S = 30.0
_ONSET_S = 1.0


def measure(context: ScenarioContext) -> list[Figure]:
    """Without TLS, so that one run serves all kinds; the tests try TLS."""
    figures = []
    with ProcessFleet(context.folder, rounds_job(devices=2, hidden=100)) as fleet:
        fleet.wait_committed(5)
        address, _ = fleet.invitations["d-0"]
        calm = _rounds_per_s(fleet, context.size["joins"])
        for kind in context.size["kinds"]:
            for per_s in context.size["per_s"]:
                with stray_connections(int(address.rpartition(":")[2]), kind, per_s):
                    time.sleep(_ONSET_S)
                    start = time.monotonic()
                    delays = sorted(_ask_to_join_s(address) for _ in range(context.size["joins"]))
                    rate = fleet.commits.rate(start, time.monotonic())
                context.show(f"{kind}, {per_s}/s: {delays[-1]:.2f} s to be answered, {rate:.1f} rounds/s")
                figures.append(
                    Figure(
                        name=f"{kind}, {per_s:g} a second: slowest answer to a join request",
                        unit="s",
                        measured=delays[-1],
                        goal=Goal("≤", _MAX_JOIN_S) if per_s <= 200 else None,
                        note=f"{rate:.1f} rounds/s, {calm:.1f} without",
                        executed="live",
                    )
                )
    return figures


def _rounds_per_s(fleet: ProcessFleet, seconds: float) -> float:
    start = time.monotonic()
    time.sleep(seconds)
    return fleet.commits.rate(start, time.monotonic())


def _ask_to_join_s(address: str) -> float:
    """Seconds until a stranger's join request is answered (refused, since it has no token)."""
    started = time.monotonic()
    request = handshake_messages.encode_handshake(JoinRequest(name="d-0", body=secrets.token_hex(16)))
    while time.monotonic() - started < _GIVE_UP_S:
        try:
            session = open_session(Endpoint(connect=(address,)), "client")
        except EndpointError:
            continue
        with session:
            if list(session.get(key_expressions.admission_key("d-0"), payload=request, timeout=3.0)):
                break
    time.sleep(0.2)
    return time.monotonic() - started - 0.2


SCENARIO = FaultScenario(
    title="connections that are no device's",
    clause="200 a second from one address delay a join by at most 2 s.",
    executed="live",
    measure=measure,
    quick={"kinds": ["init"], "per_s": [200], "joins": 5},
    full={"kinds": ["random", "init", "silence"], "per_s": [12, 200, 1000], "joins": 10},
    quick_s=14.0,
    full_s=150.0,
    needs=lambda: None if is_supported() else "Linux: connections are not limited elsewhere",
)
