"""Training runs of each kind (decoupled, central, FedAvg, alone), and what a device saves."""

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

__all__ = [
    "device_cost_ratios",
    "train_alone",
    "train_central",
    "train_decoupled",
    "train_federated",
    "train_without_negatives",
]

_CALIBRATION_SAMPLES = 500
_BATCH = 256


def train_decoupled(case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """Devices with one group each: accuracy of the assembled network, uncalibrated and calibrated in two ways."""
    task, cut = decoupled_task(case, root, seed), case.cut
    result = potluck.simulate(_grouped_job(case, seed), task=task, threads=0)
    assert result.status == "done", result.reason
    assert isinstance(result.module, GroupedNetwork)
    accuracies: dict[str, Any] = {"accuracy": _test_accuracy(result.module, task.data.test)}
    chosen = np.linspace(0, len(task.data.train) - 1, _CALIBRATION_SAMPLES).astype(np.int64)
    extents: tuple[Extent, ...] = ("readout", "heads")
    for extent in extents:
        assembled = result.module.assemble()
        calibrate_groups(assembled, [task.data.train.batch(chosen)], extent=extent)
        accuracies[f"calibrated {extent}"] = _test_accuracy(assembled, task.data.test)
    savings = device_cost_ratios(result.module, cut)
    return {
        **accuracies,
        **savings,
        "samples": result.summary["samples"] / cut.groups,
        "wall_s": result.summary["wall_s"],
    }


def train_without_negatives(case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """As `train_decoupled`, but devices have samples of their own classes only and generate negatives from them."""
    task = decoupled_task(case, root, seed)
    submodel = {
        **_submodel_table(case),
        "negatives": "generated",
        "calibration": _CALIBRATION_SAMPLES,
        "held_out": False,
    }
    split = {"kind": "class-groups", "groups": case.cut.groups, "rest": 0.0}
    job = decoupled_job(case, "decoupled", case.cut.groups, seed, split=split, rounds={"submodel": submodel})
    result = potluck.simulate(job, task=task, threads=0)
    assert result.module is not None, result.reason
    return {"accuracy": _test_accuracy(result.module, task.data.test)}


def train_central(case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """The full network on all of the data, on one device."""
    return _train_plain(case, root, seed, "central", 1)


def train_federated(case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """FedAvg of full networks on the data that the devices of `train_decoupled` hold."""
    split = {"kind": "class-groups", "groups": case.cut.groups}
    return _train_plain(case, root, seed, "fedavg", case.cut.groups, split=split)


def train_alone(case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """No collaboration: each device keeps what it trained, and is tested on all classes."""
    task = decoupled_task(case, root, seed)
    shards = RoundsSetup.from_job(_grouped_job(case, seed), task, None).shards
    accuracies = []
    for group, shard in enumerate(shards.values()):
        own = replace(task, data=replace(task.data, train=_select_samples(task.data.train, shard)))
        submodel = {"held": {"device": (group,)}, **_submodel_table(case)}
        job = decoupled_job(case, "decoupled", 1, seed, rounds={"submodel": submodel})
        result = potluck.simulate(job, task=own, threads=0)
        assert result.module is not None, result.reason
        accuracies.append(_test_accuracy(result.module, task.data.test))
    return {"accuracy": float(np.mean(accuracies)), "each": accuracies}


def device_cost_ratios(grouped: GroupedNetwork, cut: DecoupledCut) -> dict[str, Any]:
    """By which factors a device with one group computes less for one sample, and holds fewer weights."""
    sizes = [len(own) for own in grouped.spec.groups]
    full, group = full_model_cost(grouped.layers), group_cost(grouped.layers, sizes, cut.depth)
    training = full.training_macs(frozen=False), group.training_macs(frozen=cut.trunk == "frozen")
    return {
        "forward_macs": (full.macs, group.macs),
        "training_macs": training,
        "forward": full.macs / group.macs,
        "training": training[0] / training[1],
        "weights": full.weights / group.weights,
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
    task = decoupled_task(case, root, seed)
    result = potluck.simulate(decoupled_job(case, recipe, devices, seed, **more), task=task, threads=0)
    assert result.status == "done", result.reason
    assert result.module is not None
    accuracy = _test_accuracy(result.module, task.data.test)
    return {"accuracy": accuracy, "samples": result.summary["samples"] / devices, "wall_s": result.summary["wall_s"]}


def _select_samples(train: Samples, indices: Any) -> Samples:
    return replace(train, x=train.x[indices], y=train.y[indices], owner=None)


@torch.no_grad()
def _test_accuracy(module: nn.Module, test: Samples) -> float:
    module.eval()
    correct = sum(int((module(inputs).argmax(dim=1) == labels).sum()) for inputs, labels in _sample_batches(test))
    return correct / len(test)


def _sample_batches(samples: Samples) -> Iterable[tuple[Tensor, Tensor]]:
    for start in range(0, len(samples), _BATCH):
        yield samples.batch(np.arange(start, min(start + _BATCH, len(samples))))
