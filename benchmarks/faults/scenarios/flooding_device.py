"""A device with a valid token sends as fast as it can: bytes that are no frame, valid frames, or join requests."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults import hostile_device
from benchmarks.faults.command_process import wait_until
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from benchmarks.faults.process_fleet import START_S, ProcessFleet, rounds_job

__all__ = ["SCENARIO"]

_HOSTILE_DEVICE = Path(hostile_device.__file__)
_STOP_AFTER_S = 2.0  # until SIGTERM is heard


def measure(context: ScenarioContext) -> list[Figure]:
    figures = []
    for kind in context.size["kinds"]:
        figures += _measure_kind(context, kind)
    return figures


def _measure_kind(context: ScenarioContext, kind: str) -> list[Figure]:
    seconds = float(context.size["seconds"])
    job = rounds_job(devices=3, hidden=100)
    job["rounds"]["barrier"] = {"kind": "quorum", "share": 0.6}
    with ProcessFleet(context.folder / kind, job) as fleet:
        fleet.wait_committed(5)
        fleet.kill("d-2")
        log = context.folder / kind / "coordinator.log"
        start = time.monotonic()
        time.sleep(seconds)
        calm, size = fleet.commits.rate(start, time.monotonic()), log.stat().st_size
        sent = context.folder / f"{kind}.sent"
        address, token = fleet.invitations["d-2"]
        words = [sys.executable, str(_HOSTILE_DEVICE), address, "d-2", token, kind, str(seconds + 60)]
        with sent.open("wb") as output:
            flood = subprocess.Popen(words, stdout=output)
        wait_until("the flood", lambda: sent.stat().st_size > 0, START_S)
        middle = time.monotonic()
        time.sleep(seconds)
        flooded, logged = fleet.commits.rate(middle, time.monotonic()), log.stat().st_size - size
        terminated = time.monotonic()
        fleet.coordinator.terminate()
        heard_s = _wait_for_notice(fleet, terminated)
        exit_code = fleet.coordinator.wait(60)
        ended_s = time.monotonic() - terminated
        flood.terminate()
        flood.wait()
    counts = sent.read_text().splitlines()
    context.show(counts[-1])
    context.show(f"{kind}: {calm:.2f} rounds/s, flooded {flooded:.2f}, log {logged} B, SIGTERM {heard_s:.2f} s")
    return [
        Figure(
            name=f"{kind}: rounds per second beside the flood",
            unit="of the calm",
            measured=flooded / calm,
            goal=Goal("≥", 0.3),
            note=f"{calm:.2f} → {flooded:.2f} rounds/s; the flood has a core of two to itself",
            executed="live",
        ),
        Figure(
            name=f"{kind}: log written meanwhile",
            unit="kB",
            measured=logged / 1e3,
            goal=Goal("≤", 20.0),
            executed="live",
        ),
        Figure(
            name=f"{kind}: until SIGTERM was heard",
            unit="s",
            measured=heard_s,
            goal=Goal("≤", _STOP_AFTER_S),
            note=f"exit code {exit_code} after {ended_s:.1f} s",
            executed="live",
        ),
    ]


def _wait_for_notice(fleet: ProcessFleet, since: float) -> float:
    while "stopping at a safe point" not in fleet.coordinator.log and fleet.coordinator.is_running:
        if time.monotonic() - since > 60:
            break
        time.sleep(0.02)
    return time.monotonic() - since


SCENARIO = FaultScenario(
    title="a device floods the coordinator",
    clause="Expelled means cut off, and a flood stops neither the rounds nor SIGTERM.",
    executed="live",
    measure=measure,
    quick={"kinds": ["garbage"], "seconds": 4},
    full={"kinds": ["garbage", "heartbeats", "joins"], "seconds": 10},
    quick_s=13.0,
    full_s=120.0,
)
