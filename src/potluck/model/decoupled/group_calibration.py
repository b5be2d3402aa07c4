"""Calibration: make the groups' words comparable on a small held-out set, since no two of them were trained together.

Either three numbers for each group (scale, shift of "other", offset) or, going further, the groups' last layers too.
All are fitted together to the likelihood of the assembled network, and stay near their beginning if samples are few.
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
_READOUT_SPREAD = 1.0  # how far from its beginning a number may be expected to lie
_HEAD_SPREAD = 0.05


@dataclass(frozen=True)
class CalibrationReport:
    """Loss and accuracy on the held-out samples, before and after; `skipped` have classes that nobody trained."""

    samples: int
    skipped: int
    loss: tuple[float, float]
    accuracy: tuple[float, float]


@dataclass(frozen=True, eq=False)
class _GroupParameters:
    """What is fitted of one group: logarithm of the scale, shift, offset; weight and bias of its last layer."""

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
    dials = [_initial_parameters(branch) for branch in branches]
    before = _loss_and_accuracy(dials, features, labels)
    _fit_parameters(dials, features, labels, extent)
    for branch, found in zip(branches, dials, strict=True):
        _store_parameters(branch, found)
    loss, accuracy = zip(before, _loss_and_accuracy(dials, features, labels), strict=True)
    return CalibrationReport(len(labels), skipped, loss, accuracy)


@torch.no_grad()
def _head_inputs(
    network: AssembledNetwork, trained: Sequence[int], batches: Batches
) -> tuple[list[Tensor], Tensor, int]:
    """What comes before each group's last layer, and labels as places among the trained groups' classes."""
    places = torch.full((network.spec.class_count,), -1)
    own = [label for number in trained for label in network.spec.groups[number]]
    places[own] = torch.arange(len(own))
    found: list[list[Tensor]] = [[] for _ in trained]
    labels, skipped = [], 0
    network.eval()
    for inputs, targets in batches:
        known = places[targets] >= 0
        skipped += int((~known).sum())
        shared = network.trunk(inputs[known])
        labels.append(places[targets[known]])
        for parts, number in zip(found, trained, strict=True):
            parts.append(network.group_branch(number).stages[:-1](shared).double())
    if not labels or not sum(map(len, labels)):
        raise DataError("no held-out sample of a class that was trained; calibration needs some")
    return [torch.cat(parts) for parts in found], torch.cat(labels), skipped


def _head_layer(branch: GroupBranch) -> nn.Linear:
    head = branch.stages[-1]
    assert isinstance(head, nn.Linear)
    return head


def _initial_parameters(branch: GroupBranch) -> _GroupParameters:
    head, last = _head_layer(branch), branch.readout
    numbers = torch.stack([last.scale.log(), last.shift, last.offset]).double()
    bias = torch.zeros(head.out_features) if head.bias is None else head.bias.detach()
    return _GroupParameters(numbers, head.weight.detach().double(), bias.double().clone(), last.normalised)


def _joint_logits(dials: Sequence[_GroupParameters], features: Sequence[Tensor]) -> Tensor:
    return torch.cat([dial.group_logits(given) for dial, given in zip(dials, features, strict=True)], dim=1)


def _fit_parameters(
    dials: Sequence[_GroupParameters], features: Sequence[Tensor], labels: Tensor, extent: Extent
) -> None:
    """Maximum a posteriori by L-BFGS: the likelihood, and a pull back to the beginning that fades with more samples."""
    free = [(dial.readout, _READOUT_SPREAD) for dial in dials]
    if extent == "heads":
        free += [(numbers, _HEAD_SPREAD) for dial in dials for numbers in (dial.weight, dial.bias)]
    begin = [numbers.clone() for numbers, _ in free]
    for numbers, _ in free:
        numbers.requires_grad_()
    search = torch.optim.LBFGS([numbers for numbers, _ in free], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        search.zero_grad()
        pull = sum(
            (numbers - first).square().sum() / (2 * spread**2)
            for (numbers, spread), first in zip(free, begin, strict=True)
        )
        loss = F.cross_entropy(_joint_logits(dials, features), labels) + pull / len(labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    search.step(objective)  # type: ignore[no-untyped-call]
    for numbers, _ in free:
        numbers.requires_grad_(False)


@torch.no_grad()
def _store_parameters(branch: GroupBranch, found: _GroupParameters) -> None:
    head, last = _head_layer(branch), branch.readout
    last.scale.copy_(found.readout[0].exp())
    last.shift.copy_(found.readout[1])
    last.offset.copy_(found.readout[2])
    head.weight.copy_(found.weight)
    if head.bias is not None:
        head.bias.copy_(found.bias)


@torch.no_grad()
def _loss_and_accuracy(
    dials: Sequence[_GroupParameters], features: Sequence[Tensor], labels: Tensor
) -> tuple[float, float]:
    logits = _joint_logits(dials, features)
    return float(F.cross_entropy(logits, labels)), float((logits.argmax(dim=1) == labels).double().mean())
