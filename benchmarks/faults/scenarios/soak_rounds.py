"""Rounds go on under kills, freezes, cut links and coordinator deaths."""

from __future__ import annotations

from benchmarks.benchmark_figures import Figure
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from benchmarks.faults.process_fleet import rounds_job
from benchmarks.faults.soak import SoakFaults, soak_beside_baseline, soak_figures
from benchmarks.shaped_network import missing_requirement

__all__ = ["SCENARIO"]


def measure(context: ScenarioContext) -> list[Figure]:
    faults = SoakFaults(**context.size["faults"])
    job = rounds_job(devices=context.size["devices"], hidden=context.size["hidden"])
    return soak_figures(
        soak_beside_baseline(context, job, faults), least_share=context.size["least_share"], most_standstill_s=15.0
    )


SCENARIO = FaultScenario(
    title="soak of rounds",
    clause="Whatever dies, freezes or is cut off, nothing that was committed is lost or counted twice.",
    executed="live",
    measure=measure,
    quick={
        "least_share": 25.0,  # a coordinator death takes a third of so short a soak
        "devices": 3,
        "hidden": 200,
        "faults": {"seconds": 12.0, "kills": 2, "freezes": 1, "cuts": 1, "coordinator_deaths": 1},
    },
    full={
        "least_share": 50.0,
        "devices": 4,
        "hidden": 800,
        "faults": {"seconds": 270.0, "kills": 25, "freezes": 27, "cuts": 15, "coordinator_deaths": 3},
    },
    quick_s=18.0,
    full_s=290.0,
    needs=missing_requirement,
)
