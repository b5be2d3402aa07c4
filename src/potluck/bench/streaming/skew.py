"""Ten devices with one class each: the baseline stalls, shared samples or another norm help."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import potluck
from potluck.bench.streaming import testbed
from potluck.job import Job, make

__all__ = ["CASES", "FULL", "QUICK", "Case", "Workload", "measure", "skewed_job"]


class Workload(NamedTuple):
    rounds: int
    data: str = "cifar10"


class Case(NamedTuple):
    """What is done about it."""

    recipe: str
    norm: str = "batch"
    injection: tuple[float, float] | None = None
    mixed: bool = False  # every device has all classes


CASES: Mapping[str, Case] = {
    "ddl, classes mixed": Case("ddl", mixed=True),
    "ddl": Case("ddl"),
    "scadles, (α, β) = (0.5, 0.5)": Case("scadles-injection", injection=(0.5, 0.5)),
    "scadles, (α, β) = (0.1, 0.1)": Case("scadles-injection", injection=(0.1, 0.1)),
    "scadles-plus, group norm": Case("scadles-plus", norm="group"),
    "ddl, group norm, classes mixed": Case("ddl", norm="group", mixed=True),
}

FULL = Workload(rounds=400)
QUICK = Workload(rounds=12, data=testbed.INVENTED)


def skewed_job(case: Case, workload: Workload, seed: int) -> Job:
    stream: dict[str, Any] = dict(testbed.stream("S1'"))
    if case.injection is not None:
        stream["injection"] = dict(zip(("alpha", "beta"), case.injection, strict=True))
    return make(
        {
            "task": testbed.task(case.norm, workload.data),
            "fleet": testbed.fleet(10),
            "recipe": case.recipe,
            "split": "iid" if case.mixed else {"kind": "classes", "per_device": 1},
            "stream": stream,
            "rounds": {"server": testbed.SERVER, "schedule": {"kind": "cosine", "rounds": workload.rounds}},
            "stop": {"rounds": workload.rounds},
            "evaluate": 0,
            "checkpoint": 0,
            "seed": seed,
        }
    )


def measure(case: Case, workload: Workload, seed: int, data: Path | None) -> dict[str, Any]:
    """Accuracy at the end, and raw data that left the devices."""
    with tempfile.TemporaryDirectory() as place:
        result = potluck.simulate(skewed_job(case, workload, seed), folder=Path(place) / "run", data=data, threads=0)
    assert result.status == "done", result.reason
    shared = int(result.summary["streams"]["shared"])
    return {"accuracy": result.summary["accuracy"], "shared": shared, "time_s": result.summary["time_s"]}
