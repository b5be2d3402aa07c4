"""The measurements of `dropout`: time of a training step, exploration of a network, one federated training run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

import potluck
from benchmarks.dropout.dropout_workload import (
    EXPLORED,
    METHODS,
    SETTINGS,
    DropoutSetting,
    TrainingPlan,
    TunedSettings,
    dropout_job,
    rate_table_path,
    task_table,
)
from potluck.data import Samples
from potluck.explore import Exploration, ExplorationResult, explore
from potluck.journal import Scalar, read_journal
from potluck.model import zoo
from potluck.model.model_replica import ModelReplica
from potluck.model.submodels import SlimmableModel, WidthWorkspace, trace_slimmable
from potluck.model.submodels.slimmable_model import choose_subsets, random_units
from potluck.planning.pareto_table import ParetoTable
from potluck.settings import decode_settings
from potluck.task import Task, TaskSettings, build_task

__all__ = [
    "NETWORKS",
    "RATES",
    "largest_shortfall",
    "measure_exploration",
    "measure_steps",
    "measure_training",
    "write_pareto_tables",
]

NETWORKS = {"vgg11-bn-cifar": "VGG-11", "resnet20": "ResNet-20", "mobilenet-v2-cifar": "MobileNetV2"}
RATES = (0.25, 0.5, 0.75)
BATCH = 32
GRID = 8
LR = 1e-4


def measure_steps(name: str, repeats: int, grid: int = GRID) -> dict[str, Any]:
    """Alternate full and reduced steps; CPU time of one thread, channels last for both."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        timer = _StepTimer(name)
        return {str(rate): timer.compare_steps(rate, repeats, grid) for rate in RATES}
    finally:
        torch.set_num_threads(threads)


class _StepTimer:
    """A network, a batch, and the two kinds of step."""

    def __init__(self, name: str) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module, entry = zoo.build_model(name), zoo.model_entry(name)
            inputs, self._targets = torch.randn(BATCH, *entry.shape), torch.randint(0, entry.classes, (BATCH,))
        self._inputs = inputs.contiguous(memory_format=torch.channels_last)
        self._width: SlimmableModel = trace_slimmable(module, entry.shape)
        self._whole = ModelReplica(module, self._width.layout, nn.functional.cross_entropy)
        self._workspace = WidthWorkspace(self._width, self._whole, scaled=True)
        self._rng = np.random.default_rng(0)

    def compare_steps(self, rate: float, repeats: int, grid: int) -> dict[str, float]:
        """Median times, after one warm-up step of each kind."""
        counts = self._width.kept_counts([rate] * len(self._width.sets), grid)
        whole, small = (lambda: self._run_step(self._width.full_counts)), (lambda: self._run_step(counts))
        pairs = [(_thread_seconds(whole), _thread_seconds(small)) for _ in range(repeats + 1)][1:]
        whole_s, small_s = (float(np.median(times)) for times in zip(*pairs, strict=True))
        return {
            "macs": self._width.macs_fraction(counts),
            "time": small_s / whole_s,
            "whole_s": whole_s,
            "small_s": small_s,
        }

    def _run_step(self, counts: tuple[int, ...]) -> None:
        """Everything a device does: choose channels, extract, forward, backward, update, scatter."""
        kept = choose_subsets(self._width, counts, random_units(self._rng))
        batch = (self._inputs, self._targets)
        self._workspace.train_step(kept, batch, lambda weights, gradient, _: weights.add_(gradient, alpha=-LR))


def _thread_seconds(step: Callable[[], None]) -> float:
    start = time.thread_time()
    step()
    return time.thread_time() - start


def measure_exploration(setting: DropoutSetting, settings: Exploration, data: Path | None) -> dict[str, Any]:
    """Explore without reusing any earlier evaluation."""
    start = time.perf_counter()
    result = explore(decode_settings(task_table(setting), TaskSettings, "task"), settings, root=data)
    return {
        "minutes": (time.perf_counter() - start) / 60,
        "hypervolume": result.hypervolume,
        "uniform_hypervolume": result.uniform_hypervolume,
        "evaluations": result.evaluations,
        "behind": largest_shortfall(result),
        "correlation": result.correlation,
        "front": _front_points(result.table),
        "uniform": _front_points(result.uniform),
    }


def largest_shortfall(result: ExplorationResult) -> float:
    """The largest difference by which the front gains less than a uniform vector at no higher cost."""
    return max(
        entry.gain - result.table.entries[result.table.best_within(entry.macs)].gain for entry in result.uniform.entries
    )


def _front_points(table: ParetoTable) -> list[tuple[float, float]]:
    return [(entry.macs / table.baseline_macs, entry.gain) for entry in table.entries]


def write_pareto_tables(settings: Exploration, data: Path | None) -> None:
    """Explore again what federated training uses: each network with each way to choose units."""
    networks = {setting.table: setting for setting in reversed(list(SETTINGS.values())) if setting.table}
    for setting in networks.values():
        for method in EXPLORED:
            units = METHODS[method].submodel.get("units", "random")
            explored = msgspec.structs.replace(settings, units=units, static=True)
            result = explore(decode_settings(task_table(setting), TaskSettings, "task"), explored, root=data)
            result.table.save(Path(rate_table_path(setting, method)))


_TEST_SAMPLES = 3000  # always the same ones; as many others are for tuning


def measure_training(
    plan: TrainingPlan, tuned: TunedSettings, data: Path | None, *, validation: bool = False
) -> dict[str, Any]:
    """Accuracy of the full model over time, or of the small one where that is trained; none if it diverged.

    `share` is the mean fraction of the MACs that devices train, where they train submodels.
    """
    job = dropout_job(plan, tuned)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        task = _setting_task(plan.setting, data, validation)
        result = potluck.simulate(job, task=task, folder=folder, threads=0)
        assert validation or result.status == "done", result.reason
        curve = list(_accuracy_points(folder / "journal.jsonl")) if result.status == "done" else []
        fractions = [scalar.value for scalar in _read_scalars(folder / "journal.jsonl", "share")]
    return {
        "times_s": [at for at, _ in curve],
        "accuracies": [accuracy for _, accuracy in curve],
        "end_s": float(job.stop.time or 0.0),
        "rounds": int(result.summary["rounds"]),
        "share": float(np.mean(fractions)) if fractions else 0.0,
    }


@lru_cache(maxsize=2)
def _setting_task(setting: str, data: Path | None, validation: bool) -> Task:
    """The task of the setting, loaded once for all methods, with fewer test samples to keep evaluation short."""
    task = build_task(decode_settings(task_table(SETTINGS[setting]), TaskSettings), data)
    return replace(task, data=replace(task.data, test=_tested_subset(task.data.test, validation)))


def _tested_subset(samples: Samples, validation: bool) -> Samples:
    """Samples for the comparison, or others for tuning; each at most half of the test set."""
    order, count = np.random.default_rng(0).permutation(len(samples)), min(_TEST_SAMPLES, len(samples) // 2)
    chosen = order[count : 2 * count] if validation else order[:count]
    owner = None if samples.owner is None else samples.owner[chosen]
    return replace(samples, x=samples.x[chosen], y=samples.y[chosen], owner=owner)


def _accuracy_points(journal: Path) -> Iterator[tuple[float, float]]:
    return ((scalar.at, scalar.value) for scalar in _read_scalars(journal, "test_accuracy"))


def _read_scalars(journal: Path, name: str) -> Iterator[Scalar]:
    return (record for record in read_journal(journal) if isinstance(record, Scalar) and record.name == name)
