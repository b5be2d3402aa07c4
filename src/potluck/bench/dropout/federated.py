"""One federated training: accuracy over virtual time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import potluck
from potluck.bench.dropout.workload import SETTINGS, dropout_job
from potluck.data import Samples
from potluck.journal import Scalar, read
from potluck.task import Task, build

__all__ = ["measure"]

TESTED = 4000  # of the test samples, always the same


def measure(
    setting: str, variation: str, method: str, rounds: int, seed: int, data: Path | None
) -> dict[str, list[float] | float]:
    """The accuracies of the whole model (of the small one, where that is what is trained) and when it had them."""
    job = dropout_job(SETTINGS[setting], variation, method, rounds, seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        result = potluck.simulate(job, task=_task(job, data), folder=folder)
        assert result.status == "done", result.reason
        curve = list(_accuracies(folder / "journal.jsonl"))
        shares = [scalar.value for scalar in _scalars(folder / "journal.jsonl", "share")]
    return {
        "times_s": [at for at, _ in curve],
        "accuracies": [accuracy for _, accuracy in curve],
        "rounds": float(result.summary["rounds"]),
        "share": float(np.mean(shares)) if shares else 0.0,
    }


def _task(job: Any, data: Path | None) -> Task:
    """The job's own, scored on some of the test samples, for that is most of what scoring costs."""
    task = build(job.task, data)
    return replace(task, data=replace(task.data, test=_some(task.data.test)))


def _some(samples: Samples) -> Samples:
    chosen = np.random.default_rng(0).permutation(len(samples))[:TESTED]
    owner = None if samples.owner is None else samples.owner[chosen]
    return replace(samples, x=samples.x[chosen], y=samples.y[chosen], owner=owner)


def _accuracies(journal: Path) -> Iterator[tuple[float, float]]:
    return ((scalar.at, scalar.value) for scalar in _scalars(journal, "test_accuracy"))


def _scalars(journal: Path, name: str) -> Iterator[Scalar]:
    return (record for record in read(journal) if isinstance(record, Scalar) and record.name == name)
