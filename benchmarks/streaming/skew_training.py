"""Ten devices with one class each: the baseline stalls, shared samples or another norm help."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import potluck
from benchmarks.streaming import scadles_testbed
from potluck.job import Job, make

__all__ = ["CASES", "FULL", "QUICK", "SkewCase", "SkewWorkload", "measure_skew", "skewed_job"]


class SkewWorkload(NamedTuple):
    rounds: int
    data: str = "cifar10"


class SkewCase(NamedTuple):
    """What is done about it."""

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
QUICK = SkewWorkload(rounds=12, data=scadles_testbed.INVENTED)


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
    """Accuracy at the end, and raw data that left the devices."""
    with tempfile.TemporaryDirectory() as place:
        result = potluck.simulate(skewed_job(case, workload, seed), folder=Path(place) / "run", data=data, threads=0)
    assert result.status == "done", result.reason
    shared = int(result.summary["streams"]["shared"])
    return {"accuracy": result.summary["accuracy"], "shared": shared, "time_s": result.summary["time_s"]}
