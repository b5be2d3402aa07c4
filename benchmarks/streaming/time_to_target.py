"""How long until a model is good enough: a recipe on one of the paper's sets of stream rates."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import potluck
from benchmarks.streaming import scadles_testbed
from potluck.job import Job, make
from potluck.journal import Scalar, read_journal

__all__ = ["FULL", "QUICK", "RaceWorkload", "measure_race", "race_job", "samples_per_round", "seconds_to_target"]


class RaceWorkload(NamedTuple):
    """How often the training data is gone through, and what is good enough."""

    epochs: float
    target: float
    scores: int = 25  # on the way
    samples: int = 50_000  # of the training data
    data: str = "cifar10"


FULL = RaceWorkload(epochs=8, target=0.66)
QUICK = RaceWorkload(epochs=1, target=0.6, scores=8, samples=10_000, data=scadles_testbed.INVENTED)


def race_job(
    workload: RaceWorkload,
    recipe: str,
    rates: scadles_testbed.RateSet,
    seed: int,
    changes: Mapping[str, Any] | None = None,
) -> Job:
    """As many rounds as it takes to go through the data so often, with a learning rate that falls over all of them."""
    tables: dict[str, Any] = {
        "task": scadles_testbed.task_table(data=workload.data),
        "fleet": scadles_testbed.fleet_table(),
        "recipe": recipe,
        "stream": scadles_testbed.stream_table(rates),
        "stop": {"rounds": 1},
        "checkpoint": 0,
        "seed": seed,
        "rounds": {"server": scadles_testbed.SERVER, **(changes or {})},
    }
    rounds = max(2, round(workload.epochs * workload.samples / samples_per_round(make(tables))))
    tables["rounds"] = {"schedule": {"kind": "cosine", "rounds": rounds}, **tables["rounds"]}
    return make({**tables, "stop": {"rounds": rounds}, "evaluate": max(1, rounds // workload.scores)})


def samples_per_round(job: Job) -> int:
    """Samples of one round, all devices together: tried out, without the mathematics."""
    tried = msgspec.structs.replace(job, timing_only=True, evaluate=0)
    return int(potluck.simulate(tried).summary["samples"])


def measure_race(
    workload: RaceWorkload, recipe: str, rates: scadles_testbed.RateSet, seed: int, data: Path | None = None
) -> dict[str, Any]:
    """The way of the accuracy over time, and what it took."""
    job = race_job(workload, recipe, rates, seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        result = potluck.simulate(job, folder=folder, data=data, threads=0)
        curve = list(_accuracy_curve(folder / "journal.jsonl"))
    assert result.status == "done", result.reason
    kept = {key: result.summary[key] for key in ("accuracy", "time_s", "bytes", "rounds", "samples", "streams")}
    return {**kept, "curve": curve, "target": workload.target}


def _accuracy_curve(journal: Path) -> Iterator[tuple[float, float]]:
    for record in read_journal(journal):
        if isinstance(record, Scalar) and record.name == "test_accuracy":
            yield record.at, record.value


def seconds_to_target(target: float, curve: Sequence[Sequence[float]]) -> float:
    """When the accuracy first reaches the target, on a straight line between scores; infinite if it never does."""
    before = (0.0, 0.0)
    for at, accuracy in curve:
        if accuracy >= target:
            share = (target - before[1]) / (accuracy - before[1])
            return before[0] + share * (at - before[0])
        before = (at, accuracy)
    return float("inf")
