"""One federated training: accuracy over virtual time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import potluck
from benchmarks.dropout.dropout_workload import SETTINGS, dropout_job, task_table
from potluck.data import Samples
from potluck.journal import Scalar, read_journal
from potluck.settings import decode_settings
from potluck.task import Task, TaskSettings, build_task

__all__ = ["measure_training"]

TESTED = 3000  # of the test samples, always the same


def measure_training(
    setting: str, variation: str, method: str, rounds: int, seed: int, data: Path | None
) -> dict[str, Any]:
    """The accuracies of the whole model (of the small one, where that is what is trained) and when it had them.

    `share` is the mean MAC share of turns, where parts of the model are trained.
    """
    job = dropout_job(SETTINGS[setting], variation, method, rounds, seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        result = potluck.simulate(job, task=_setting_task(setting, data), folder=folder, threads=0)
        assert result.status == "done", result.reason
        curve = list(_accuracy_points(folder / "journal.jsonl"))
        shares = [scalar.value for scalar in _read_scalars(folder / "journal.jsonl", "share")]
    return {
        "times_s": [at for at, _ in curve],
        "accuracies": [accuracy for _, accuracy in curve],
        "end_s": float(job.stop.time or 0.0),
        "rounds": int(result.summary["rounds"]),
        "share": float(np.mean(shares)) if shares else 0.0,
    }


@lru_cache(maxsize=1)
def _setting_task(setting: str, data: Path | None) -> Task:
    """The setting's own, read once for all methods, scored on some of the test samples: scoring takes long."""
    task = build_task(decode_settings(task_table(SETTINGS[setting]), TaskSettings), data)
    return replace(task, data=replace(task.data, test=_tested_subset(task.data.test)))


def _tested_subset(samples: Samples) -> Samples:
    chosen = np.random.default_rng(0).permutation(len(samples))[:TESTED]
    owner = None if samples.owner is None else samples.owner[chosen]
    return replace(samples, x=samples.x[chosen], y=samples.y[chosen], owner=owner)


def _accuracy_points(journal: Path) -> Iterator[tuple[float, float]]:
    return ((scalar.at, scalar.value) for scalar in _read_scalars(journal, "test_accuracy"))


def _read_scalars(journal: Path, name: str) -> Iterator[Scalar]:
    return (record for record in read_journal(journal) if isinstance(record, Scalar) and record.name == name)
