"""Training runs of each kind (decoupled, central, FedAvg, alone), the choice of rates, and what a device saves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import potluck
from benchmarks.decoupled.decoupled_workload import (
    BUDGET,
    SAVING,
    DecoupledCase,
    DecoupledCut,
    decoupled_job,
    decoupled_task,
    pretraining_task,
    tuning_task,
)
from potluck.data import Samples
from potluck.model.decoupled import GroupedNetwork, calibrate_groups, decouple
from potluck.model.decoupled.group_calibration import Extent
from potluck.planning.groups import even_groups, full_model_cost, group_costs
from potluck.run.rounds_setup import RoundsSetup

__all__ = [
    "best_rate",
    "device_cost_ratios",
    "train_alone",
    "train_central",
    "train_decoupled",
    "train_federated",
    "train_without_negatives",
    "try_rate",
    "turn_saving",
]

Rates = Mapping[str, Mapping[str, Any]]  # results of `try_rate` by piece

_CALIBRATION_SAMPLES = 500
_BATCH = 256
_MANY = 1000  # passes that no budget allows
_ALONE_PASSES = 2


def try_rate(case: DecoupledCase, way: str, lr: float, root: Path | None) -> dict[str, Any]:
    """Validation accuracy of a way with this rate: one seed, half of the rounds, a tenth of the data held out."""
    task, total = tuning_task(decoupled_task(case, root, 0)), max(1, case.rounds // 2)
    if way == "central":
        job = decoupled_job(case, "central", 1, 0, lr, total=total)
    elif way == "fedavg":
        job = _federated_job(case, 0, lr, total=total)
    else:
        task = _start_task(case, tuning_task(_grouped_task(case, root, 0)), root, 0, lr)
        job = _grouped_job(case, task, 0, lr, total=total)
    module = _run_job(job, task).module
    return {"lr": lr, "accuracy": _test_accuracy(module, task.data.test)}


def best_rate(rates: Rates) -> float:
    """The rate with the highest validation accuracy."""
    return float(max(rates.values(), key=lambda tried: tried["accuracy"])["lr"])


def train_decoupled(rates: Rates, case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """Accuracy of the assembled network, uncalibrated and calibrated in two ways, and what a device saves."""
    cut = case.cut
    task = _start_task(case, _grouped_task(case, root, seed), root, seed, best_rate(rates))
    result = _run_job(_grouped_job(case, task, seed, best_rate(rates)), task)
    assert isinstance(result.module, GroupedNetwork)
    accuracies: dict[str, Any] = {"accuracy": _test_accuracy(result.module, task.data.test)}
    chosen = np.linspace(0, len(task.data.train) - 1, _CALIBRATION_SAMPLES).astype(np.int64)
    extents: tuple[Extent, ...] = ("readout", "heads")
    for extent in extents:
        assembled = result.module.assemble()
        calibrate_groups(assembled, [task.data.train.batch(chosen)], extent=extent)
        accuracies[f"calibrated {extent}"] = _test_accuracy(assembled, task.data.test)
    samples, held = result.summary["samples"] / cut.groups, _held_samples(case, task)
    costs = device_cost_ratios(result.module, cut)
    return {
        **accuracies,
        **costs,
        "device_macs": samples * (costs["training_macs"][1] + costs["teacher_macs"]) + held * costs["once_macs"],
        "samples": samples,
        "lr": best_rate(rates),
        "wall_s": result.summary["wall_s"],
    }


def train_without_negatives(rates: Rates, case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """As `train_decoupled`, but devices have samples of their own classes only and generate negatives from them.

    Generated samples differ in every pass, so a trunk is not cached.
    """
    if case.cut.trunk == "cached":
        case = case._replace(cut=case.cut._replace(trunk="frozen"))
    task, groups = _start_task(case, _grouped_task(case, root, seed), root, seed, best_rate(rates)), case.cut.groups
    submodel = {
        **_submodel_table(case, task, case.rounds),
        "negatives": "generated",
        "calibration": _CALIBRATION_SAMPLES,
        "held_out": False,
    }
    split = {"kind": "class-groups", "groups": groups, "rest": 0.0}
    rounds, epochs = {"submodel": submodel}, case.cut.passes or _MANY
    job = decoupled_job(case, "decoupled", groups, seed, best_rate(rates), split=split, rounds=rounds, epochs=epochs)
    return {"accuracy": _test_accuracy(_run_job(job, task).module, task.data.test)}


def train_central(rates: Rates, case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """The full network on all of the data, on one device."""
    task = decoupled_task(case, root, seed)
    result = _run_job(decoupled_job(case, "central", 1, seed, best_rate(rates)), task)
    return {
        "accuracy": _test_accuracy(result.module, task.data.test),
        "samples": result.summary["samples"],
        "lr": best_rate(rates),
        "wall_s": result.summary["wall_s"],
    }


def train_federated(rates: Rates, case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """FedAvg of full networks on the data that the devices of `train_decoupled` hold."""
    task = decoupled_task(case, root, seed)
    result = _run_job(_federated_job(case, seed, best_rate(rates)), task)
    return {"accuracy": _test_accuracy(result.module, task.data.test), "lr": best_rate(rates)}


def train_alone(rates: Rates, case: DecoupledCase, root: Path | None, seed: int) -> dict[str, Any]:
    """No collaboration: each device keeps what it trained, and is tested on all classes."""
    lr = best_rate(rates)
    task = _start_task(case, _grouped_task(case, root, seed), root, seed, lr)
    plain = case._replace(cut=case.cut._replace(passes=_ALONE_PASSES, each=1))
    shards = RoundsSetup.from_job(_grouped_job(plain, task, seed, lr), task, None).shards
    accuracies = []
    for group, shard in enumerate(shards.values()):
        own = replace(task, data=replace(task.data, train=_select_samples(task.data.train, shard)))
        submodel = {**_submodel_table(plain, task, case.rounds), "each": None, "held": {"device": (group,)}}
        job = decoupled_job(case, "decoupled", 1, seed, lr, rounds={"submodel": submodel}, epochs=_ALONE_PASSES)
        accuracies.append(_test_accuracy(_run_job(job, own).module, task.data.test))
    return {"accuracy": float(np.mean(accuracies)), "each": accuracies}


def device_cost_ratios(grouped: GroupedNetwork, cut: DecoupledCut) -> dict[str, Any]:
    """By which factors a device computes less for one sample, and holds fewer weights."""
    sizes = [len(own) for own in grouped.spec.groups]
    frozen, cached = cut.trunk != "averaged", cut.trunk == "cached"
    full, costs = full_model_cost(grouped.graph), group_costs(grouped.graph, sizes, cut.depth)
    group, assembled = costs.of_groups(range(cut.each)), costs.of_groups(range(cut.groups))
    training = full.training_macs(frozen=False), group.training_macs(frozen=frozen, cached=cached)
    return {
        "forward_macs": (full.macs, group.macs),
        "training_macs": training,
        "once_macs": group.trunk_macs if cached else 0,
        "teacher_macs": (assembled.group_macs if cached else assembled.macs) if cut.distill else 0,
        "forward": full.macs / group.macs,
        "training": training[0] / training[1],
        "weights": full.weights / group.weights,
    }


def _grouped_task(case: DecoupledCase, root: Path | None, seed: int) -> potluck.Task:
    return decoupled_task(case, root, seed, augment=case.cut.trunk != "cached")


def _start_task(case: DecoupledCase, task: potluck.Task, root: Path | None, seed: int, lr: float) -> potluck.Task:
    """The task with the network that a cut starts from: newly initialised, or pre-trained."""
    if not case.cut.pretrained:
        return task
    network = decoupled_task(case, root, seed).build_module(seed)
    own = network.state_dict()
    plain = case._replace(cut=DecoupledCut(0, 1, variant=case.cut.variant), others=())
    trained = _pretrained_weights(plain, root, seed, lr)
    known = {name: value for name, value in trained.items() if own[name].shape == value.shape}
    network.load_state_dict({**own, **known})
    return replace(task, model=network)


@cache
def _pretrained_weights(case: DecoupledCase, root: Path | None, seed: int, lr: float) -> Mapping[str, Tensor]:
    """A network that was trained centrally and briefly; the cuts of a case share it, so its cut has a variant only."""
    task = pretraining_task(case, case.cut, root, seed)
    trained = _run_job(decoupled_job(case, "central", 1, seed, lr, total=case.pretraining_rounds), task).module
    weights: Mapping[str, Tensor] = trained.state_dict()
    return weights


def _held_samples(case: DecoupledCase, task: potluck.Task) -> float:
    """The samples on a device: those of its own classes, and as many others."""
    return 2 * len(task.data.train) / case.cut.groups


def turn_saving(case: DecoupledCase, task: potluck.Task, rounds: int) -> float:
    """What a turn has to save so that the whole training saves `SAVING`, with the pass that fills a cache."""
    if case.cut.trunk != "cached":
        return SAVING
    groups = even_groups(len(task.data.classes), case.cut.groups)
    costs = device_cost_ratios(decouple(task.build_module(0), task.data.shape, groups, case.cut.depth), case.cut)
    central_macs = rounds * len(task.data.train) * costs["training_macs"][0]
    fraction = 1 / SAVING - _held_samples(case, task) * costs["once_macs"] / central_macs
    assert fraction > 0, f"{case.cut.label}: filling the cache alone costs more than the budget"
    return float(1 / fraction)


def _submodel_table(case: DecoupledCase, task: potluck.Task, rounds: int) -> dict[str, Any]:
    """The settings of the part; the cache has room for all that a device of these cases holds."""
    cut = case.cut
    table: dict[str, Any] = {"kind": "class-groups", "groups": cut.groups, "depth": cut.depth, "variant": cut.variant}
    table["trunk"] = "averaged" if cut.trunk == "averaged" else "frozen"
    table["cache"] = "8 GiB" if cut.trunk == "cached" else "0 B"
    table |= {"each": cut.each, "distill": cut.distill}
    return {**table, "saving": turn_saving(case, task, rounds)} if cut.passes == BUDGET else table


def _grouped_job(case: DecoupledCase, task: potluck.Task, seed: int, lr: float, **more: Any) -> potluck.Job:
    submodel = _submodel_table(case, task, more.get("total", case.rounds))
    split = {"kind": "class-groups", "groups": case.cut.groups}
    epochs = case.cut.passes or _MANY
    return decoupled_job(
        case, "decoupled", case.cut.groups, seed, lr, split=split, rounds={"submodel": submodel}, epochs=epochs, **more
    )


def _federated_job(case: DecoupledCase, seed: int, lr: float, **more: Any) -> potluck.Job:
    split = {"kind": "class-groups", "groups": case.cut.groups}
    return decoupled_job(case, "fedavg", case.cut.groups, seed, lr, split=split, **more)


def _run_job(job: potluck.Job, task: potluck.Task) -> Any:
    result = potluck.simulate(job, task=task, threads=0)
    assert result.status == "done", result.reason
    assert result.module is not None
    return result


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
