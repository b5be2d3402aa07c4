"""Calibration: makes the groups' logits comparable on a small held-out set, since groups are trained separately.

It fits three values for each group (scale, shift of "other", offset) or also the groups' last layers.
All are fitted jointly to the likelihood of the assembled network, and stay near their initial values if samples are
few.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from potluck.errors import DataError
from potluck.model.decoupled.group_readout import comparable_logits
from potluck.model.decoupled.grouped_network import AssembledNetwork, GroupBranch

__all__ = ["CalibrationReport", "Extent", "calibrate_groups"]

Extent = Literal["readout", "heads"]
Batches = Iterable[tuple[Tensor, Tensor]]

_STEPS = 100
_READOUT_SPREAD = 1.0  # the expected distance of a value from its initial one
_HEAD_SPREAD = 0.05


@dataclass(frozen=True)
class CalibrationReport:
    """Loss and accuracy on the held-out samples, before and after; `skipped` ones belong to untrained classes."""

    samples: int
    skipped: int
    loss: tuple[float, float]
    accuracy: tuple[float, float]


@dataclass(frozen=True, eq=False)
class _GroupParameters:
    """What is fitted in one group: log scale, shift and offset of the readout; weight and bias of its last layer."""

    readout: Tensor
    weight: Tensor
    bias: Tensor
    normalised: bool

    def group_logits(self, features: Tensor) -> Tensor:
        outputs = F.linear(features, self.weight, self.bias)
        return comparable_logits(outputs, self.readout[0].exp(), self.readout[1], self.readout[2], self.normalised)


def calibrate_groups(network: AssembledNetwork, batches: Batches, *, extent: Extent = "readout") -> CalibrationReport:
    """Fit the trained groups of a network to held-out samples, in place."""
    trained = [number for number in range(len(network.spec.groups)) if number not in network.untrained_groups()]
    branches = [network.group_branch(number) for number in trained]
    features, labels, skipped = _head_inputs(network, trained, batches)
    parameters = [_initial_parameters(branch) for branch in branches]
    before = _loss_and_accuracy(parameters, features, labels)
    _fit_parameters(parameters, features, labels, extent)
    for branch, fitted in zip(branches, parameters, strict=True):
        _store_parameters(branch, fitted)
    loss, accuracy = zip(before, _loss_and_accuracy(parameters, features, labels), strict=True)
    return CalibrationReport(len(labels), skipped, loss, accuracy)


@torch.no_grad()
def _head_inputs(
    network: AssembledNetwork, trained: Sequence[int], batches: Batches
) -> tuple[list[Tensor], Tensor, int]:
    """The inputs of each group's last layer, labels as indices among the trained groups' classes, skipped samples."""
    index_of = torch.full((network.spec.class_count,), -1)
    own = [label for number in trained for label in network.spec.groups[number]]
    index_of[own] = torch.arange(len(own))
    features: list[list[Tensor]] = [[] for _ in trained]
    labels, skipped = [], 0
    network.eval()
    for inputs, targets in batches:
        known = index_of[targets] >= 0
        skipped += int((~known).sum())
        shared = network.trunk(inputs[known])
        labels.append(index_of[targets[known]])
        for batches_of_group, number in zip(features, trained, strict=True):
            batches_of_group.append(network.group_branch(number).stages.head_inputs(shared).double())
    if not labels or not sum(map(len, labels)):
        raise DataError("no held-out sample belongs to a trained class; calibration needs some")
    return [torch.cat(group) for group in features], torch.cat(labels), skipped


def _head_layer(branch: GroupBranch) -> nn.Linear:
    head = branch.stages[-1]
    assert isinstance(head, nn.Linear)
    return head


def _initial_parameters(branch: GroupBranch) -> _GroupParameters:
    head, readout = _head_layer(branch), branch.readout
    values = torch.stack([readout.scale.log(), readout.shift, readout.offset]).double()
    bias = torch.zeros(head.out_features) if head.bias is None else head.bias.detach()
    return _GroupParameters(values, head.weight.detach().double(), bias.double().clone(), readout.normalised)


def _joint_logits(parameters: Sequence[_GroupParameters], features: Sequence[Tensor]) -> Tensor:
    return torch.cat([group.group_logits(inputs) for group, inputs in zip(parameters, features, strict=True)], dim=1)


def _fit_parameters(
    parameters: Sequence[_GroupParameters], features: Sequence[Tensor], labels: Tensor, extent: Extent
) -> None:
    """Maximum a posteriori by L-BFGS: the likelihood, with a prior around the initial values."""
    free = [(group.readout, _READOUT_SPREAD) for group in parameters]
    if extent == "heads":
        free += [(values, _HEAD_SPREAD) for group in parameters for values in (group.weight, group.bias)]
    initial = [values.clone() for values, _ in free]
    for values, _ in free:
        values.requires_grad_()
    optimizer = torch.optim.LBFGS([values for values, _ in free], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimizer.zero_grad()
        prior = sum(
            (values - first).square().sum() / (2 * spread**2)
            for (values, spread), first in zip(free, initial, strict=True)
        )
        loss = F.cross_entropy(_joint_logits(parameters, features), labels) + prior / len(labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(objective)  # type: ignore[no-untyped-call]
    for values, _ in free:
        values.requires_grad_(False)


@torch.no_grad()
def _store_parameters(branch: GroupBranch, fitted: _GroupParameters) -> None:
    head, readout = _head_layer(branch), branch.readout
    readout.scale.copy_(fitted.readout[0].exp())
    readout.shift.copy_(fitted.readout[1])
    readout.offset.copy_(fitted.readout[2])
    head.weight.copy_(fitted.weight)
    if head.bias is not None:
        head.bias.copy_(fitted.bias)


@torch.no_grad()
def _loss_and_accuracy(
    parameters: Sequence[_GroupParameters], features: Sequence[Tensor], labels: Tensor
) -> tuple[float, float]:
    logits = _joint_logits(parameters, features)
    return float(F.cross_entropy(logits, labels)), float((logits.argmax(dim=1) == labels).double().mean())
