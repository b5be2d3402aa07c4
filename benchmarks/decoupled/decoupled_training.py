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
from benchmarks.decoupled.decoupled_workload import DecoupledCase, DecoupledCut, decoupled_job, decoupled_task
from potluck.data import Samples
from potluck.model.decoupled import GroupedNetwork, calibrate_groups
from potluck.model.decoupled.group_calibration import Extent
from potluck.planning.groups import full_model_cost, group_cost
from potluck.run.rounds_setup import RoundsSetup

__all__ = ["device_cost_ratios", "train_alone", "train_central", "train_decoupled", "train_federated", "train_unaided"]

_CALIBRATING = 500  # of the training samples
_BATCH = 256


def train_decoupled(case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """Devices with one group each: accuracy of the harvested network as it is, and calibrated in two ways."""
    given, cut = decoupled_task(case, root, seed), case.cut
    result = potluck.simulate(_grouped_job(case, seed), task=given, threads=0)
    assert result.status == "done", result.reason
    assert isinstance(result.module, GroupedNetwork)
    found: dict[str, Any] = {"accuracy": _test_accuracy(result.module, given.data.test)}
    chosen = np.linspace(0, len(given.data.train) - 1, _CALIBRATING).astype(np.int64)
    extents: tuple[Extent, ...] = ("readout", "heads")
    for extent in extents:
        assembled = result.module.assemble()
        calibrate_groups(assembled, [given.data.train.batch(chosen)], extent=extent)
        found[f"calibrated {extent}"] = _test_accuracy(assembled, given.data.test)
    load = device_cost_ratios(result.module, cut)
    return {**found, **load, "samples": result.summary["samples"] / cut.groups, "wall_s": result.summary["wall_s"]}


def train_unaided(case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """As `decoupled`, but no device has a sample of a class beyond its own: what it tells them from is made up."""
    given = decoupled_task(case, root, seed)
    submodel = {**_submodel_table(case), "negatives": "generated", "calibration": _CALIBRATING, "held_out": False}
    split = {"kind": "class-groups", "groups": case.cut.groups, "rest": 0.0}
    wanted = decoupled_job(case, "decoupled", case.cut.groups, seed, split=split, rounds={"submodel": submodel})
    result = potluck.simulate(wanted, task=given, threads=0)
    assert result.module is not None, result.reason
    return {"accuracy": _test_accuracy(result.module, given.data.test)}


def train_central(case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """The whole network on all of the data, in one place."""
    return _train_plain(case, root, seed, "central", 1)


def train_federated(case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """FedAvg of whole networks on what the devices of `decoupled` hold."""
    split = {"kind": "class-groups", "groups": case.cut.groups}
    return _train_plain(case, root, seed, "fedavg", case.cut.groups, split=split)


def train_alone(case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """No harvest: each device keeps what it trained, and is asked about all classes."""
    given = decoupled_task(case, root, seed)
    shards = RoundsSetup.from_job(_grouped_job(case, seed), given, None).shards
    found = []
    for group, shard in enumerate(shards.values()):
        own = replace(given, data=replace(given.data, train=_select_samples(given.data.train, shard)))
        submodel = {"held": {"device": (group,)}, **_submodel_table(case)}
        wanted = decoupled_job(case, "decoupled", 1, seed, rounds={"submodel": submodel})
        result = potluck.simulate(wanted, task=own, threads=0)
        assert result.module is not None, result.reason
        found.append(_test_accuracy(result.module, given.data.test))
    return {"accuracy": float(np.mean(found)), "each": found}


def device_cost_ratios(grouped: GroupedNetwork, cut: DecoupledCut) -> dict[str, Any]:
    """How many times less a device with one group computes for one sample, and holds."""
    sizes = [len(own) for own in grouped.spec.groups]
    everything, part = full_model_cost(grouped.layers), group_cost(grouped.layers, sizes, cut.depth)
    training = everything.training_macs(frozen=False), part.training_macs(frozen=cut.trunk == "frozen")
    return {
        "forward_macs": (everything.macs, part.macs),
        "training_macs": training,
        "forward": everything.macs / part.macs,
        "training": training[0] / training[1],
        "weights": everything.weights / part.weights,
    }


def _submodel_table(case: DecoupledCase) -> dict[str, Any]:
    cut = case.cut
    return {"kind": "class-groups", "groups": cut.groups, "depth": cut.depth, "trunk": cut.trunk}


def _grouped_job(case: DecoupledCase, seed: int, **more: Any) -> potluck.Job:
    split = {"kind": "class-groups", "groups": case.cut.groups}
    return decoupled_job(
        case, "decoupled", case.cut.groups, seed, split=split, rounds={"submodel": _submodel_table(case)}, **more
    )


def _train_plain(
    case: DecoupledCase, root: Path | None, seed: int, recipe: str, devices: int, **more: Any
) -> dict[str, Any]:
    given = decoupled_task(case, root, seed)
    result = potluck.simulate(decoupled_job(case, recipe, devices, seed, **more), task=given, threads=0)
    assert result.status == "done", result.reason
    assert result.module is not None
    accuracy = _test_accuracy(result.module, given.data.test)
    return {"accuracy": accuracy, "samples": result.summary["samples"] / devices, "wall_s": result.summary["wall_s"]}


def _select_samples(train: Samples, chosen: Any) -> Samples:
    return replace(train, x=train.x[chosen], y=train.y[chosen], owner=None)


@torch.no_grad()
def _test_accuracy(module: nn.Module, test: Samples) -> float:
    module.eval()
    right = sum(int((module(inputs).argmax(dim=1) == labels).sum()) for inputs, labels in _sample_batches(test))
    return right / len(test)


def _sample_batches(samples: Samples) -> Iterable[tuple[Tensor, Tensor]]:
    for start in range(0, len(samples), _BATCH):
        yield samples.batch(np.arange(start, min(start + _BATCH, len(samples))))
