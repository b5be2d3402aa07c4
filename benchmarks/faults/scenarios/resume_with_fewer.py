"""The coordinator and two of three devices are killed; the run is resumed with the one that is left."""

from __future__ import annotations

import time

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from benchmarks.faults.process_fleet import ProcessFleet, rounds_job

__all__ = ["SCENARIO"]


def measure(context: ScenarioContext) -> list[Figure]:
    """From the command `resume` to the next round, each time."""
    seconds: list[float] = []
    with ProcessFleet(context.folder, rounds_job(devices=3, hidden=64), serve_options=["--token-each"]) as fleet:
        fleet.wait_committed(5)
        for _ in range(context.size["deaths"]):
            fleet.kill_coordinator()
            for name in fleet.names[1:]:
                fleet.kill(name)
            reached, began = fleet.commits.count, time.monotonic()
            fleet.resume_coordinator()
            fleet.wait_committed(reached + 1)
            seconds.append(time.monotonic() - began)
            for name in fleet.names[1:]:
                fleet.restart(name)
            fleet.wait_committed(reached + 20)
        printed = fleet.coordinator.log.rpartition("listening on ")[2]  # by the last one that was resumed
        tokens = {line.rpartition(" ")[2] for line in printed.splitlines() if " --token " in line}
        lost, doubled = fleet.commits.lost(), fleet.commits.doubled()
    return [
        Figure(
            name="from resume to the next round, longest",
            unit="s",
            measured=max(seconds),
            goal=Goal("≤", 10),
            note=f"of {len(seconds)}; 64.8 s when it waited 60 s for the missing devices",
            executed="live",
        ),
        Figure(
            name="tokens printed with --token-each kept",
            unit="",
            measured=len(tokens),
            goal=Goal("≥", 3),
            executed="live",
        ),
        Figure(name="rounds lost", unit="", measured=lost, goal=Goal("≤", 0), executed="live"),
        Figure(name="rounds doubled", unit="", measured=doubled, goal=Goal("≤", 0), executed="live"),
    ]


SCENARIO = FaultScenario(
    title="resumed with one of three devices",
    clause="A resumed live run begins when enough devices are back, with the options that it was started with.",
    executed="live",
    measure=measure,
    quick={"deaths": 1},
    full={"deaths": 10},
    quick_s=7.0,
    full_s=150.0,
)
