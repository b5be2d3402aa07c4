"""Accuracy over time of a pipeline, with and without crashes, and of a single device."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

import potluck
from benchmarks.benchmark import Results
from potluck.job import Job, make
from potluck.journal import Instant, Scalar, read_journal

__all__ = [
    "CIFAR",
    "DIGITS",
    "VARIANTS",
    "LearningWorkload",
    "learning_job",
    "learning_results",
    "measure_fill",
    "measure_learning",
]


class LearningWorkload(NamedTuple):
    """A network small enough for this machine, its data, and the number of batches."""

    title: str
    model: str
    data: str
    batches: int
    batch: int = 64
    lr: float = 0.05
    flops: float = 10e9  # of a device of capacity 1


class LearningVariant(NamedTuple):
    """Devices by capacity (2 is half as fast), whether they crash, and changes to the recipe's schedule."""

    recipe: str
    capacities: tuple[float, ...]
    crashes: bool = False
    schedule: Mapping[str, Any] = MappingProxyType({})


CIFAR = LearningWorkload("CIFAR-10", "benchmarks.networks:thin_vgg", "cifar10", 3_900)
DIGITS = LearningWorkload("digits", "benchmarks.networks:thin_digits", "digits", 400, batch=16, flops=1e8)
_UNLIMITED = {"speed": 1.0, "most": 64}  # batches in flight: as many as keep the slowest stage or link busy
VARIANTS: Mapping[str, LearningVariant] = {
    "one device": LearningVariant("single", (1,)),
    "ours": LearningVariant("ftpipehd", (1, 1, 2)),
    "ours, with crashes": LearningVariant("ftpipehd", (1, 1, 2), crashes=True),
    "vertical sync": LearningVariant("ftpipehd", (1, 1, 2), schedule={"vertical_sync": True}),
    "vertical sync, 3 in flight": LearningVariant("ftpipehd", (1, 1, 2), schedule={"vertical_sync": True, "most": 3}),
    "weights not predicted": LearningVariant("ftpipehd", (1, 1, 2), schedule={"predict": False}),
    "PipeDream": LearningVariant("pipedream", (1, 1, 2)),
}


def learning_job(
    workload: LearningWorkload, variant: LearningVariant, seed: int, duration_s: float | None = None
) -> Job:
    """With crashes each worker crashes and restarts twice, spread over the `duration_s` of the run."""
    devices = [
        {"name": f"device{index}", "flops": workload.flops / capacity, "link": "lan"}
        for index, capacity in enumerate(variant.capacities)
    ]
    fleet: dict[str, Any] = {"devices": devices}
    if variant.crashes:
        assert duration_s is not None
        fleet["faults"] = [
            {"kind": "crash", "device": device, "at": fraction * duration_s, "restart": f"{0.1 * duration_s} s"}
            for device, fraction in (("device1", 0.2), ("device2", 0.4), ("device1", 0.6), ("device2", 0.8))
        ]
    schedule = {"kind": "cosine", "rounds": workload.batches, "warmup": workload.batches // 10}
    optimizer = {"kind": "sgd", "lr": workload.lr, "momentum": 0.9, "weight_decay": 5e-4}
    pipeline: dict[str, Any] = {"batch": workload.batch, "optimizer": optimizer, "lr_schedule": schedule}
    if variant.schedule:
        pipeline["schedule"] = dict(variant.schedule)
    return make(
        {
            "task": {"model": workload.model, "data": workload.data},
            "fleet": fleet,
            "recipe": variant.recipe,
            "pipeline": pipeline,
            "stop": {"rounds": workload.batches},
            "evaluate": workload.batches // 10,
            "checkpoint": 0,
            "seed": seed,
        }
    )


def measure_learning(workload: LearningWorkload, name: str, seed: int, data: Path | None) -> dict[str, Any]:
    """Accuracy over simulated time; crashes are spread over the time that the same run takes without them."""
    variant, duration_s = VARIANTS[name], None
    if variant.crashes:
        duration_s = _duration_s(workload, variant._replace(crashes=False), seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        result = potluck.simulate(
            learning_job(workload, variant, seed, duration_s), folder=folder, data=data, threads=0
        )
        records = list(read_journal(folder / "journal.jsonl"))
    assert result.status == "done", result.reason
    scores = [record for record in records if isinstance(record, Scalar) and record.name == "test_accuracy"]
    instants = [record.name for record in records if isinstance(record, Instant)]
    return {
        "accuracy": result.summary["accuracy"],
        "time_s": result.summary["time_s"],
        "times_s": [score.at for score in scores],
        "accuracies": [score.value for score in scores],
        "layouts": instants.count("partition"),
        "deaths": instants.count("lost"),
    }


def measure_fill(workload: LearningWorkload) -> dict[str, float]:
    """How fast our pipeline is with as few batches in flight as it has by default, and with as many as it could use."""
    ours = VARIANTS["ours"]
    return {
        "default_s": _duration_s(workload, ours, 0),
        "unlimited_s": _duration_s(workload, ours._replace(schedule=_UNLIMITED), 0),
    }


def _duration_s(workload: LearningWorkload, variant: LearningVariant, seed: int) -> float:
    """Simulated seconds of a run without evaluations."""
    job = msgspec.structs.replace(learning_job(workload, variant, seed), timing_only=True, evaluate=0)
    return float(potluck.simulate(job).summary["time_s"])


def learning_results(results: Results) -> dict[str, list[Any]]:
    """The training runs among the results, by variant."""
    return {
        name: [result for piece, result in results.items() if piece.startswith(f"learning/{name}/")]
        for name in VARIANTS
    }
