"""`faults`: what must not break a run, tried: soaks with kills, freezes and cuts, lying devices, mutated messages.

To add a scenario, write `scenarios/NAME.py`:

    def measure(context: ScenarioContext) -> list[Figure]:
        ...                                                    # context.size, context.seed, context.folder
        return [Figure(name="rounds lost", unit="", measured=lost, executed="live", goal=Goal("≤", 0))]

    SCENARIO = FaultScenario(
        title="a device dies in mid-round", clause="What was committed is never lost.", executed="live",
        measure=measure, quick={"kills": 2}, full={"kills": 50}, quick_s=12, full_s=300,
    )

Try it with `python -m benchmarks.faults NAME`. `process_fleet.py` starts a coordinator and devices as processes and
kills, freezes, cuts and restarts them; `committed_rounds.py` reads what was committed; `process_usage.py` samples
memory and descriptors; `small_disk.py` mounts a small file system.
"""

from __future__ import annotations

from functools import partial

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_catalogue import CATALOGUE
from benchmarks.benchmark_figures import Figure
from benchmarks.faults.fault_scenario import find_scenarios, source_digest
from benchmarks.faults.scenario_process import measure_apart, scenario_figures
from benchmarks.measured_code import LIVE_PACKAGE

__all__ = ["BENCHMARK"]


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """One piece per scenario, one at a time; it is measured again only if the code has changed."""
    return [
        BenchmarkPiece(
            name,
            dict(scenario.size(context.quick)),
            partial(measure_apart, name, context.quick, context.seed),
            scenario.expected_s(context.quick),
            code=source_digest(name),
        )
        for name, scenario in find_scenarios().items()
    ]


def compute_figures(results: Results) -> list[Figure]:
    return [figure for result in results.values() for figure in scenario_figures(result)]


BENCHMARK = Benchmark(
    name="faults",
    summary=CATALOGUE["faults"].summary,
    pieces=declare_pieces,
    figures=compute_figures,
    notes=(
        "Live scenarios are real processes on one machine: killed with kill -9, frozen with SIGSTOP, cut off by taking"
        " down the link of their network namespace. Each scenario has a process of its own and runs alone.",
        "Every scenario's commit, seed, size and load are in the result file, under `pieces`.",
    ),
    resumes=True,
    measures=LIVE_PACKAGE,
)
