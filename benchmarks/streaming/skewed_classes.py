"""Devices with few classes each: the baseline stalls; injected samples or group norm help.

As published: ten devices with one class of CIFAR-10 each, and 25 devices with four classes of CIFAR-100 each.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import potluck
from benchmarks.benchmark import BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_figures import Figure, Goal, figure_of_repeats
from benchmarks.streaming import scadles_testbed
from potluck.job import Job, make

__all__ = [
    "CASES",
    "FULL",
    "QUICK",
    "SkewCase",
    "SkewWorkload",
    "compute_figures",
    "declare_pieces",
    "measure_skew",
    "skewed_job",
]


class SkewWorkload(NamedTuple):
    """The devices and their classes."""

    title: str
    devices: int
    classes: int  # of each device
    rounds: int
    data: str


class SkewCase(NamedTuple):
    """A recipe with its remedy for skewed classes."""

    recipe: str
    norm: str = "batch"
    injection: tuple[str, float, float] | None = None  # kind, alpha, beta
    mixed: bool = False  # every device has all classes
    judged: bool = False  # against what is published for ScaDLES


CASES: Mapping[str, SkewCase] = {
    "ddl, classes mixed": SkewCase("ddl", mixed=True),
    "ddl": SkewCase("ddl"),
    "scadles, broadcast (0.5, 0.5)": SkewCase("scadles", injection=("broadcast", 0.5, 0.5), judged=True),
    "scadles, missing classes (0.5, 0.5)": SkewCase("scadles", injection=("missing-classes", 0.5, 0.5)),
    "scadles, broadcast (0.05, 0.05)": SkewCase("scadles", injection=("broadcast", 0.05, 0.05)),
    "scadles-plus, group norm": SkewCase("scadles-plus", norm="group"),
    "ddl, group norm, classes mixed": SkewCase("ddl", norm="group", mixed=True),
}
_FEW = ("ddl", "scadles, broadcast (0.5, 0.5)", "scadles-plus, group norm")  # on the larger fleet

FULL = (
    SkewWorkload("one class each", 10, 1, 400, "cifar10"),
    SkewWorkload("four classes each", 25, 4, 400, "cifar100"),
)
QUICK = (SkewWorkload("one class each", 10, 1, 8, scadles_testbed.SYNTHETIC),)


def skewed_job(case: SkewCase, workload: SkewWorkload, seed: int) -> Job:
    stream: dict[str, Any] = dict(scadles_testbed.stream_table("S1'"))
    if case.injection is not None:
        stream["injection"] = dict(zip(("kind", "alpha", "beta"), case.injection, strict=True))
    schedule = {"kind": "cosine", "rounds": workload.rounds}
    return make(
        {
            "task": scadles_testbed.task_table(case.norm, workload.data),
            "fleet": scadles_testbed.fleet_table(workload.devices),
            "recipe": case.recipe,
            "split": "iid" if case.mixed else {"kind": "classes", "per_device": workload.classes},
            "stream": stream,
            "rounds": {"server": scadles_testbed.server_table(case.recipe), "schedule": schedule},
            "stop": {"rounds": workload.rounds},
            "evaluate": 0,
            "checkpoint": 0,
            "seed": seed,
        }
    )


def measure_skew(case: SkewCase, workload: SkewWorkload, seed: int, data: Path | None) -> dict[str, Any]:
    """Final accuracy, and the raw samples that left the devices."""
    with tempfile.TemporaryDirectory() as temporary:
        result = potluck.simulate(
            skewed_job(case, workload, seed), folder=Path(temporary) / "run", data=data, threads=0
        )
    assert result.status == "done", result.reason
    summary = result.summary
    shared, trained = int(summary["streams"]["shared"]), int(summary["samples"])
    return {**summary["metrics"], "shared": shared, "trained": trained, "time_s": summary["time_s"]}


_SAMPLE_BYTES = 3 * 32 * 32 + 8


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """Every case on the small fleet, some on the large one; three seeds."""
    workloads, repeats = (QUICK, 1) if context.quick else (FULL, 3)
    return [
        _skew_piece(name, workload, repeat, context)
        for repeat in range(repeats)
        for workload in workloads
        for name in (CASES if workload is workloads[0] else _FEW)
    ]


def _skew_piece(name: str, workload: SkewWorkload, repeat: int, context: BenchmarkContext) -> BenchmarkPiece:
    case, seed = CASES[name], context.seed + repeat
    server = scadles_testbed.server_table(case.recipe)
    parameters = {
        "workload": dict(workload._asdict()), "case": dict(case._asdict()), "seed": seed, "server": server,
    }  # fmt: skip
    work = partial(measure_skew, case, workload, seed, context.data)
    expected_s = 3.0 if context.quick else 280.0
    return BenchmarkPiece(f"skew/{workload.title}/{name}/{repeat}", parameters, work, expected_s, parallel=True)


def compute_figures(results: Results) -> Iterator[Figure]:
    for workload in FULL:
        for name, case in CASES.items():
            runs = [
                result
                for piece, result in results.items()
                if piece.rpartition("/")[0] == f"skew/{workload.title}/{name}"
            ]
            if runs:
                yield from _case_figures(workload, name, case, runs)


def _case_figures(workload: SkewWorkload, name: str, case: SkewCase, runs: list[Mapping[str, Any]]) -> Iterator[Figure]:
    published = None if case.mixed or case.norm != "batch" else scadles_testbed.STALLED[workload.title]
    shared = statistics.mean(run["shared"] for run in runs)
    note = f"{shared * _SAMPLE_BYTES / 1e6:.1f} MB of raw samples sent" if shared else ""
    title = name if case.mixed else f"{workload.title}: {name}"
    value = None if published is None else published["ddl" if case.recipe == "ddl" else "scadles"]
    yield figure_of_repeats(
        f"{title}: top-5", "%", [100 * run["top-5"] for run in runs], note=note,
        published=None if value is None else scadles_testbed.published_value(value),
        goal=Goal("≥", value) if case.judged and value is not None else None,
        better=None if case.recipe == "ddl" else "more", executed="simulated",
    )  # fmt: skip
    yield figure_of_repeats("  top-1", "%", [100 * run["accuracy"] for run in runs], executed="simulated")
