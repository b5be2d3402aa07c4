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
from potluck.job import Job, make
from potluck.settings import decode_settings
from potluck.task import Task, TaskSettings

__all__ = ["CASES", "QUICK", "DecoupledCase", "DecoupledCut", "decoupled_job", "decoupled_task"]


class DecoupledCut(NamedTuple):
    """How a network is divided into shared layers and groups."""

    depth: int
    groups: int
    trunk: str = "averaged"


class DecoupledCase(NamedTuple):
    """One network on one dataset, with its schedule."""

    name: str
    model: str
    data: str
    cut: DecoupledCut
    rounds: int
    samples: int  # of the training data, the same fraction of every class; 0 for all
    lr: float = 0.05
    batch: int = 64
    augment: bool = True
    passes: int = 2  # per round over the samples of a device with a group; devices with full networks make one
    ms: float = 3.0  # of a training step of the full network for one sample, approximately
    federated: int = 1  # seeds of FedAvg
    others: tuple[DecoupledCut, ...] = ()  # further cuts for the trade-off
    unaided: bool = False  # also train with generated negatives only
    calibrated: str = "calibrated readout"


CASES: Sequence[DecoupledCase] = (
    DecoupledCase(
        "AlexNet, CIFAR-10",
        "alexnet-cifar",
        "cifar10",
        DecoupledCut(1, 5),
        8,
        4_000,
        lr=0.02,
        ms=2.6,
        others=(DecoupledCut(0, 5), DecoupledCut(1, 10)),
        unaided=True,
    ),
    DecoupledCase(
        "slim VGG-11, CIFAR-10",
        "benchmarks.networks:slim_vgg",
        "cifar10",
        DecoupledCut(1, 5),
        8,
        4_000,
        lr=0.01,
        ms=2.9,
        others=(DecoupledCut(1, 2), DecoupledCut(1, 10), DecoupledCut(2, 5)),
    ),
    DecoupledCase(
        "AlexNet, CIFAR-100",
        "alexnet-cifar",
        "cifar100",
        DecoupledCut(1, 10),
        8,
        6_000,
        lr=0.02,
        ms=2.6,
        passes=3,
        others=(DecoupledCut(1, 5),),
    ),
    DecoupledCase(
        "DS-CNN, speech commands",
        "ds-cnn",
        "speech-commands",
        DecoupledCut(0, 4),
        5,
        4_000,
        ms=6.4,
        augment=False,
        others=(DecoupledCut(1, 4),),
        unaided=True,
    ),
)
QUICK = DecoupledCase(
    "MLP, digits", "mlp", "digits", DecoupledCut(1, 5), 10, 0, batch=20, augment=False, passes=1, ms=0.2
)


@cache
def _load_dataset(data: str, root: Path | None, augment: bool) -> Dataset:
    return load(parse(data), root, augment=augment)


def decoupled_task(case: DecoupledCase, root: Path | None, seed: int) -> Task:
    """The network, newly initialised, and as much of the data as the case uses."""
    full = _load_dataset(case.data, root, case.augment)
    data = replace(full, train=_class_balanced_subset(full.train, case.samples, seed))
    options = {"classes": len(data.classes)} if ":" in case.model else {}
    network = decode_settings({"model": case.model, "data": parse(case.data), "options": options}, TaskSettings)
    return Task(network.model_factory(data.shape, len(data.classes)), data, name=case.name)


def _class_balanced_subset(train: Samples, count: int, seed: int) -> Samples:
    """A random subset with the same fraction of every class."""
    if not count or count >= len(train):
        return train
    order = seeds.child_generator(seed, "subset").permutation(len(train))
    ranked = order[np.argsort(train.labels[order], kind="stable")]
    chosen = torch.from_numpy(np.sort(ranked[np.linspace(0, len(train) - 1, count).astype(np.int64)]))
    return replace(train, x=train.x[chosen], y=train.y[chosen], owner=None)


def decoupled_job(case: DecoupledCase, recipe: str, devices: int, seed: int, **more: Any) -> Job:
    """The case's schedule with a recipe; time is not measured, so all devices are equal."""
    passes = case.passes if recipe == "decoupled" else 1
    local = {
        "kind": "sgd", "lr": case.lr, "momentum": 0.9, "weight_decay": 5e-4, "epochs": passes,
    }  # fmt: skip
    rounds = {
        "batching": {"kind": "fixed", "size": case.batch},
        "local": local,
        "local_schedule": {"kind": "cosine", "rounds": case.rounds, "warmup": 1},
        **more.pop("rounds", {}),
    }
    return make(
        {
            "task": "benchmarks.decoupled:given in Python",
            "fleet": {"devices": [{"name": "device", "count": devices, "flops": "10 GFLOP/s", "link": "lan"}]},
            "stop": {"rounds": case.rounds},
            "recipe": recipe,
            "seed": seed,
            "evaluate": 0,
            "checkpoint": 0,
            "rounds": rounds,
            **more,
        }
    )
