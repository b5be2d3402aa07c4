"""Ten devices with one class each: the baseline stalls; shared samples or group norm help."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import potluck
from benchmarks.benchmark import BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_figures import Figure
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
    rounds: int
    data: str = "cifar10"


class SkewCase(NamedTuple):
    """A recipe with its remedy for skewed classes."""

    recipe: str
    norm: str = "batch"
    injection: tuple[float, float] | None = None
    mixed: bool = False  # every device has all classes


CASES: Mapping[str, SkewCase] = {
    "ddl, classes mixed": SkewCase("ddl", mixed=True),
    "ddl": SkewCase("ddl"),
    "scadles, (α, β) = (0.5, 0.5)": SkewCase("scadles-injection", injection=(0.5, 0.5)),
    "scadles, (α, β) = (0.1, 0.1)": SkewCase("scadles-injection", injection=(0.1, 0.1)),
    "scadles-plus, group norm": SkewCase("scadles-plus", norm="group"),
    "ddl, group norm, classes mixed": SkewCase("ddl", norm="group", mixed=True),
}

FULL = SkewWorkload(rounds=400)
QUICK = SkewWorkload(rounds=12, data=scadles_testbed.SYNTHETIC)


def skewed_job(case: SkewCase, workload: SkewWorkload, seed: int) -> Job:
    stream: dict[str, Any] = dict(scadles_testbed.stream_table("S1'"))
    if case.injection is not None:
        stream["injection"] = dict(zip(("alpha", "beta"), case.injection, strict=True))
    return make(
        {
            "task": scadles_testbed.task_table(case.norm, workload.data),
            "fleet": scadles_testbed.fleet_table(10),
            "recipe": case.recipe,
            "split": "iid" if case.mixed else {"kind": "classes", "per_device": 1},
            "stream": stream,
            "rounds": {"server": scadles_testbed.SERVER, "schedule": {"kind": "cosine", "rounds": workload.rounds}},
            "stop": {"rounds": workload.rounds},
            "evaluate": 0,
            "checkpoint": 0,
            "seed": seed,
        }
    )


def measure_skew(case: SkewCase, workload: SkewWorkload, seed: int, data: Path | None) -> dict[str, Any]:
    """Final accuracy, and the number of raw samples that left the devices."""
    with tempfile.TemporaryDirectory() as temporary:
        result = potluck.simulate(
            skewed_job(case, workload, seed), folder=Path(temporary) / "run", data=data, threads=0
        )
    assert result.status == "done", result.reason
    shared = int(result.summary["streams"]["shared"])
    return {"accuracy": result.summary["accuracy"], "shared": shared, "time_s": result.summary["time_s"]}


_SAMPLE_BYTES = 3 * 32 * 32 + 8


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    workload = QUICK if context.quick else FULL
    return [_skew_piece(name, case, workload, context) for name, case in CASES.items()]


def _skew_piece(name: str, case: SkewCase, workload: SkewWorkload, context: BenchmarkContext) -> BenchmarkPiece:
    parameters = {"workload": dict(workload._asdict()), "case": dict(case._asdict()), "seed": context.seed}
    work = partial(measure_skew, case, workload, context.seed, context.data)
    return BenchmarkPiece(f"skew/{name}", parameters, work, expected_s=3.0 if context.quick else 90.0, parallel=True)


def compute_figures(results: Results) -> Iterator[Figure]:
    for name, case in CASES.items():
        result: Mapping[str, Any] = results[f"skew/{name}"]
        published = (
            scadles_testbed.STALLED.get("ddl" if case.recipe == "ddl" else "scadles") if case.norm == "batch" else None
        )
        yield Figure(
            name=f"one class per device: {name}" if not case.mixed else name, unit="%",
            measured=100 * result["accuracy"],
            published=scadles_testbed.published_value(published) if published is not None and not case.mixed else None,
            note=f"{result['shared'] * _SAMPLE_BYTES / 1e6:.1f} MB of raw samples shared" if result["shared"] else "",
        )  # fmt: skip
