"""One training run in each way, and what it took of a device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import potluck
from potluck.bench.decoupled.workload import Case, Cut, job, task
from potluck.data import Samples
from potluck.model.decoupled import Grouped, calibrate
from potluck.model.decoupled.calibration import Extent
from potluck.planning.groups import cost, whole
from potluck.run.setup import Setup

__all__ = ["alone", "central", "decoupled", "federated", "load_of", "unaided"]

_CALIBRATING = 500  # of the training samples
_BATCH = 256


def decoupled(case: Case, root: Path | None, seed: int) -> dict[str, Any]:
    """Devices with one group each: accuracy of the harvested network as it is, and calibrated in two ways."""
    given, cut = task(case, root, seed), case.cut
    result = potluck.simulate(_grouped_job(case, seed), task=given, threads=0)
    assert result.status == "done", result.reason
    assert isinstance(result.module, Grouped)
    found: dict[str, Any] = {"accuracy": _accuracy(result.module, given.data.test)}
    chosen = np.linspace(0, len(given.data.train) - 1, _CALIBRATING).astype(np.int64)
    extents: tuple[Extent, ...] = ("readout", "heads")
    for extent in extents:
        assembled = result.module.assemble()
        calibrate(assembled, [given.data.train.batch(chosen)], extent=extent)
        found[f"calibrated {extent}"] = _accuracy(assembled, given.data.test)
    load = load_of(result.module, cut)
    return {**found, **load, "samples": result.summary["samples"] / cut.groups, "wall_s": result.summary["wall_s"]}


def unaided(case: Case, root: Path | None, seed: int) -> dict[str, Any]:
    """As `decoupled`, but no device has a sample of a class beyond its own: what it tells them from is made up."""
    given = task(case, root, seed)
    submodel = {**_submodel(case), "negatives": "generated", "calibration": _CALIBRATING, "held_out": False}
    split = {"kind": "class-groups", "groups": case.cut.groups, "rest": 0.0}
    wanted = job(case, "decoupled", case.cut.groups, seed, split=split, rounds={"submodel": submodel})
    result = potluck.simulate(wanted, task=given, threads=0)
    assert result.module is not None, result.reason
    return {"accuracy": _accuracy(result.module, given.data.test)}


def central(case: Case, root: Path | None, seed: int) -> dict[str, Any]:
    """The whole network on all of the data, in one place."""
    return _plain(case, root, seed, "central", 1)


def federated(case: Case, root: Path | None, seed: int) -> dict[str, Any]:
    """FedAvg of whole networks on what the devices of `decoupled` hold."""
    split = {"kind": "class-groups", "groups": case.cut.groups}
    return _plain(case, root, seed, "fedavg", case.cut.groups, split=split)


def alone(case: Case, root: Path | None, seed: int) -> dict[str, Any]:
    """No harvest: each device keeps what it trained, and is asked about all classes."""
    given = task(case, root, seed)
    shards = Setup.of(_grouped_job(case, seed), given, None).shards
    found = []
    for group, shard in enumerate(shards.values()):
        own = replace(given, data=replace(given.data, train=_only(given.data.train, shard)))
        submodel = {"held": {"device": (group,)}, **_submodel(case)}
        wanted = job(case, "decoupled", 1, seed, rounds={"submodel": submodel})
        result = potluck.simulate(wanted, task=own, threads=0)
        assert result.module is not None, result.reason
        found.append(_accuracy(result.module, given.data.test))
    return {"accuracy": float(np.mean(found)), "each": found}


def load_of(grouped: Grouped, cut: Cut) -> dict[str, Any]:
    """How many times less a device with one group computes for one sample, and holds."""
    sizes = [len(own) for own in grouped.plan.groups]
    everything, part = whole(grouped.layers), cost(grouped.layers, sizes, cut.depth)
    training = everything.training_macs(frozen=False), part.training_macs(frozen=cut.trunk == "frozen")
    return {
        "forward_macs": (everything.macs, part.macs),
        "training_macs": training,
        "forward": everything.macs / part.macs,
        "training": training[0] / training[1],
        "weights": everything.weights / part.weights,
    }


def _submodel(case: Case) -> dict[str, Any]:
    cut = case.cut
    return {"kind": "class-groups", "groups": cut.groups, "depth": cut.depth, "trunk": cut.trunk}


def _grouped_job(case: Case, seed: int, **more: Any) -> potluck.Job:
    split = {"kind": "class-groups", "groups": case.cut.groups}
    return job(case, "decoupled", case.cut.groups, seed, split=split, rounds={"submodel": _submodel(case)}, **more)


def _plain(case: Case, root: Path | None, seed: int, recipe: str, devices: int, **more: Any) -> dict[str, Any]:
    given = task(case, root, seed)
    result = potluck.simulate(job(case, recipe, devices, seed, **more), task=given, threads=0)
    assert result.status == "done", result.reason
    assert result.module is not None
    accuracy = _accuracy(result.module, given.data.test)
    return {"accuracy": accuracy, "samples": result.summary["samples"] / devices, "wall_s": result.summary["wall_s"]}


def _only(train: Samples, chosen: Any) -> Samples:
    return replace(train, x=train.x[chosen], y=train.y[chosen], owner=None)


@torch.no_grad()
def _accuracy(module: nn.Module, test: Samples) -> float:
    module.eval()
    right = sum(int((module(inputs).argmax(dim=1) == labels).sum()) for inputs, labels in _batches(test))
    return right / len(test)


def _batches(samples: Samples) -> Iterable[tuple[Tensor, Tensor]]:
    for start in range(0, len(samples), _BATCH):
        yield samples.batch(np.arange(start, min(start + _BATCH, len(samples))))
