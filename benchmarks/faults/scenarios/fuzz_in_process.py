"""Mutated frames and records through every decoder and handler, in one process per core."""

from __future__ import annotations

import os
from collections import Counter

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from benchmarks.faults.fuzz.fuzz_run import FuzzReport, run_fuzz
from potluck.worker_pool import worker_pool

__all__ = ["SCENARIO"]

_MIB = 2**20
_MOST_GROWTH_MIB = 64.0
_MOST_SHOWN = 5


def measure(context: ScenarioContext) -> list[Figure]:
    """Each process has a seed of its own."""
    processes = os.cpu_count() or 1
    inputs = -(-context.size["inputs"] // processes)
    with worker_pool(processes) as pool:
        seeds = [context.seed * 1000 + number for number in range(processes)]
        running = [pool.submit(run_fuzz, inputs, seed, shows_progress=True) for seed in seeds]
        reports = [future.result() for future in running]
    return _figures(context, reports)


def _figures(context: ScenarioContext, reports: list[FuzzReport]) -> list[Figure]:
    fed = sum((Counter(report.by_target) for report in reports), Counter[str]())
    shown = [f"{found.target}: {found.error} at {found.where}" for report in reports for found in report.findings]
    for line in shown:
        context.show(line)
    growth = max(report.end_bytes - report.warm_bytes for report in reports) / _MIB
    rate = min(report.inputs / report.seconds for report in reports)
    exceptions = sum(report.exceptions for report in reports)
    return [
        Figure(
            name="exceptions that are not refusals", unit="", measured=exceptions, goal=Goal("≤", 0),
            note="; ".join(shown[:_MOST_SHOWN]), executed="measured",
        ),
        Figure(
            name="mutated frames and records", unit="", measured=fed.total(), goal=Goal("≥", context.size["inputs"]),
            note=", ".join(f"{name} {count:,}" for name, count in fed.items()), executed="measured",
        ),
        Figure(name="inputs per second and process", unit="", measured=rate, executed="measured"),
        Figure(
            name="memory growth after the first tenth", unit="MiB", measured=growth, goal=Goal("≤", _MOST_GROWTH_MIB),
            note=f"{reports[0].end_bytes / _MIB:.0f} MiB at the end", executed="measured",
        ),
    ]  # fmt: skip


SCENARIO = FaultScenario(
    title="mutated messages, in-process",
    clause="Whatever a peer sends is handled or refused, and never an exception.",
    executed="measured",
    measure=measure,
    quick={"inputs": 200_000},
    full={"inputs": 10_000_000},
    quick_s=9.0,
    full_s=500.0,
)
