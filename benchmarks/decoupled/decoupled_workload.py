"""The networks, data and schedules of the benchmark, and the jobs that train them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from potluck import seeds
from potluck.data import Dataset, Samples, load, parse
from potluck.data.data_splits import split_holdout
from potluck.job import Job, make
from potluck.settings import decode_settings
from potluck.task import Task, TaskSettings

__all__ = [
    "BUDGET",
    "CASES",
    "QUICK",
    "RATES",
    "SAVING",
    "DecoupledCase",
    "DecoupledCut",
    "decoupled_job",
    "decoupled_task",
    "pretraining_task",
    "tuning_task",
]

BUDGET = 0  # passes: as many as a whole training that is `SAVING` times cheaper than central training allows
SAVING = 11.8
RATES = (0.02, 0.05, 0.1)  # learning rates to choose from, for central training and for ours
_VALIDATION = 0.1  # of the training data, on which rates are compared


class DecoupledCut(NamedTuple):
    """How a network is divided and trained.

    A trunk may be `averaged`, `frozen` (as it is after the pre-training), or `cached`: frozen, and computed once per
    sample, which rules out augmentation.
    """

    depth: int
    groups: int
    trunk: str = "averaged"
    passes: int = BUDGET  # of a device over its samples in a round
    each: int = 1  # groups of a device
    variant: str = "structural"
    distill: float = 0.0  # weight of the assembled network's probabilities

    @property
    def pretrained(self) -> bool:
        return self.trunk != "averaged" or self.variant == "attributed"

    @property
    def label(self) -> str:
        """A short name that says what differs from the defaults."""
        words = [f"{self.depth},{self.groups}", self.trunk]
        words += [f"{self.passes} passes"] if self.passes else []
        words += [f"{self.each} each"] if self.each > 1 else []
        words += [self.variant] if self.variant != "structural" else []
        return " ".join([*words, *(["distilled"] if self.distill else [])])


class DecoupledCase(NamedTuple):
    """One network on one dataset, with its schedule: `rounds` central passes over the data."""

    name: str
    model: str
    data: str
    cut: DecoupledCut
    rounds: int
    goal: float  # of central training, in per cent: the network is then trained
    samples: int = 0  # of the training data, the same fraction of every class; 0 for all
    batch: int = 64
    augment: bool = True
    ms: float = 3.0  # of a training step of the full network for one sample on one core, approximately
    pretraining: str = ""  # the dataset that a trunk is pre-trained on; empty: the case's own
    pretraining_rounds: int = 2
    others: tuple[DecoupledCut, ...] = ()  # further points of the curve, with one seed
    rivals: bool = False  # also FedAvg, devices alone, and devices that generate their negatives


_CURVE = (
    DecoupledCut(1, 5),
    DecoupledCut(1, 5, passes=1),
    DecoupledCut(1, 5, each=2),
    DecoupledCut(1, 5, distill=0.5),
    DecoupledCut(1, 5, variant="attributed"),
    DecoupledCut(2, 5, "cached"),
    DecoupledCut(3, 5, "cached", passes=2),
    DecoupledCut(3, 5, "cached", each=2),
)

# Central training takes rounds · samples · ms of one core. A cut within the budget takes about as long for all of its
# devices together, trying one rate half as long.
CASES: Sequence[DecoupledCase] = (
    DecoupledCase(
        "CNN, CIFAR-10", "benchmarks.networks:strided_cnn", "cifar10", DecoupledCut(3, 5, "cached"), 6, 75.0, ms=1.4,
        pretraining="cifar100", others=_CURVE, rivals=True,
    ),
    DecoupledCase(
        "CNN, CIFAR-100", "benchmarks.networks:strided_cnn", "cifar100", DecoupledCut(3, 10, "cached"), 6, 40.0, ms=1.4,
        pretraining="cifar10", others=(DecoupledCut(1, 10), DecoupledCut(2, 10, "cached"),
        DecoupledCut(3, 10, "cached", each=2)),
    ),
    DecoupledCase(
        "CNN, speech commands", "benchmarks.networks:strided_cnn", "speech-commands", DecoupledCut(3, 5, "cached"), 4,
        90.0, augment=False, ms=2.5, pretraining_rounds=1, others=(DecoupledCut(1, 5), DecoupledCut(2, 5, "cached"),
        DecoupledCut(3, 5, "cached", each=2), DecoupledCut(1, 5, variant="attributed")),
    ),
)  # fmt: skip
QUICK = DecoupledCase(
    "MLP, digits", "mlp", "digits", DecoupledCut(1, 5, passes=2), 10, 90.0, batch=20, augment=False, ms=0.2,
    pretraining_rounds=2, rivals=True,
    others=(DecoupledCut(1, 5, "cached", passes=2), DecoupledCut(1, 5, passes=1, each=2)),
)  # fmt: skip


@cache
def _load_dataset(data: str, root: Path | None, augment: bool) -> Dataset:
    return load(parse(data), root, augment=augment)


def decoupled_task(case: DecoupledCase, root: Path | None, seed: int, *, augment: bool = True) -> Task:
    """The network, newly initialised, and as much of the data as the case uses."""
    full = _load_dataset(case.data, root, case.augment and augment)
    return _task_of(case, replace(full, train=_class_balanced_subset(full.train, case.samples, seed)))


def pretraining_task(case: DecoupledCase, cut: DecoupledCut, root: Path | None, seed: int) -> Task:
    """What the trunk is pre-trained on; attribution needs the case's own classes."""
    if not case.pretraining or cut.variant == "attributed":
        return decoupled_task(case, root, seed)
    return _task_of(case, _load_dataset(case.pretraining, root, case.augment))


def tuning_task(task: Task) -> Task:
    """The same task with a tenth of its training samples as test samples, so that rates are not chosen by the test."""
    train = task.data.train
    kept, held_out = split_holdout(train.labels, round(_VALIDATION * len(train)))
    test = replace(_select_samples(train, held_out), augmentation=None)
    return replace(task, data=replace(task.data, train=_select_samples(train, kept), test=test))


def _task_of(case: DecoupledCase, data: Dataset) -> Task:
    options = {"classes": len(data.classes), "channels": data.shape[0]} if ":" in case.model else {}
    source = parse(case.data)
    network = decode_settings({"model": case.model, "data": source, "options": options}, TaskSettings)
    return Task(network.model_factory(data.shape, len(data.classes)), data, name=case.name)


def _class_balanced_subset(train: Samples, count: int, seed: int) -> Samples:
    """A random subset with the same fraction of every class."""
    if not count or count >= len(train):
        return train
    order = seeds.child_generator(seed, "subset").permutation(len(train))
    ranked = order[np.argsort(train.labels[order], kind="stable")]
    return _select_samples(train, np.sort(ranked[np.linspace(0, len(train) - 1, count).astype(np.int64)]))


def _select_samples(train: Samples, indices: Any) -> Samples:
    chosen = torch.from_numpy(np.asarray(indices))
    return replace(train, x=train.x[chosen], y=train.y[chosen], owner=None)


def decoupled_job(case: DecoupledCase, recipe: str, devices: int, seed: int, lr: float, **more: Any) -> Job:
    """The case's schedule with a recipe; time is not measured, so all devices are equal."""
    rounds = more.pop("total", case.rounds)
    local = {
        "kind": "sgd", "lr": lr, "momentum": 0.9, "weight_decay": 5e-4, "epochs": more.pop("epochs", 1),
    }  # fmt: skip
    parts = {
        "batching": {"kind": "fixed", "size": case.batch},
        "local": local,
        "local_schedule": {"kind": "cosine", "rounds": rounds, "warmup": 1},
        **more.pop("rounds", {}),
    }
    return make(
        {
            "task": "benchmarks.decoupled:given in Python",
            "fleet": {"devices": [{"name": "device", "count": devices, "flops": "10 GFLOP/s", "link": "lan"}]},
            "stop": {"rounds": rounds},
            "recipe": recipe,
            "seed": seed,
            "evaluate": 0,
            "checkpoint": 0,
            "rounds": parts,
            **more,
        }
    )
