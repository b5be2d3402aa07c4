"""A pipeline goes on under kills, freezes, cut links and coordinator deaths."""

from __future__ import annotations

from benchmarks.benchmark_figures import Figure
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from benchmarks.faults.process_fleet import pipeline_job
from benchmarks.faults.soak import SoakFaults, soak_beside_baseline, soak_figures
from benchmarks.shaped_network import missing_requirement

__all__ = ["SCENARIO"]


def measure(context: ScenarioContext) -> list[Figure]:
    faults = SoakFaults(**context.size["faults"])
    job = pipeline_job(devices=context.size["devices"], width=context.size["width"])
    job["pipeline"]["sources"] = [f"d-{number}" for number in range(context.size["devices"])]  # any of them may die
    return soak_figures(
        soak_beside_baseline(context, job, faults), least_share=context.size["least_share"], most_standstill_s=15.0
    )


SCENARIO = FaultScenario(
    title="soak of a pipeline",
    clause="Whatever dies, freezes or is cut off, batches flow on, and none is lost or counted twice.",
    executed="live",
    measure=measure,
    quick={
        "least_share": 25.0,  # a coordinator death takes a third of so short a soak
        "devices": 3,
        "width": 128,
        "faults": {"seconds": 12.0, "kills": 2, "freezes": 1, "cuts": 1, "coordinator_deaths": 1},
    },
    full={
        "least_share": 50.0,
        "devices": 4,
        "width": 256,
        "faults": {"seconds": 270.0, "kills": 25, "freezes": 27, "cuts": 3, "coordinator_deaths": 3},
    },
    quick_s=19.0,
    full_s=290.0,
    needs=missing_requirement,
)
