"""Chooses trunk depth and number of groups: the cut within a budget that keeps most of the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from potluck.errors import ModelError
from potluck.planning.groups.even_assignment import even_sizes
from potluck.planning.groups.group_costs import ChannelLayer, GroupCost, full_model_cost, group_cost, max_trunk_depth

__all__ = ["DeviceBudget", "GroupChoice", "choose_groups", "group_choices"]

_WEIGHT_BYTES = 4

HeldCount = Callable[[int], int]  # number of groups a device trains, by the number of groups


@dataclass(frozen=True)
class DeviceBudget:
    """What a device can afford: MACs of one sample's training step, and bytes of weights."""

    macs: float = math.inf
    weight_bytes: float = math.inf
    frozen: bool = False  # whether the trunk only runs forward

    def fits_budget(self, cost: GroupCost) -> bool:
        macs = cost.training_macs(frozen=self.frozen)
        return macs <= self.macs and cost.weights * _WEIGHT_BYTES <= self.weight_bytes


@dataclass(frozen=True)
class GroupChoice:
    """One cut: the most expensive device's cost, and the fraction of the MACs that the assembled network keeps."""

    depth: int
    groups: int
    cost: GroupCost
    kept_fraction: float


def _one_group(count: int) -> int:
    return 1


def group_choices(
    layers: Sequence[ChannelLayer],
    classes: int,
    counts: Sequence[int] = (),
    depths: Sequence[int] = (),
    held: HeldCount = _one_group,
) -> Iterator[GroupChoice]:
    """All cuts, or those with the given depths and group counts; `held` says how many groups a device trains."""
    for depth in depths or range(max_trunk_depth(layers) + 1):
        for count in counts or range(1, classes + 1):
            if held(count) <= count <= _narrowest_width(layers, depth):
                yield _evaluate_choice(layers, classes, depth, count, held(count))


def choose_groups(
    layers: Sequence[ChannelLayer],
    classes: int,
    budget: DeviceBudget,
    counts: Sequence[int] = (),
    depths: Sequence[int] = (),
    held: HeldCount = _one_group,
) -> GroupChoice:
    """The cut within the budget that keeps the largest fraction of the network; ModelError if none fits."""
    choices = list(group_choices(layers, classes, counts, depths, held))
    if not choices:
        raise ModelError(f"the network cannot be cut into {tuple(counts) or classes} groups; ask for fewer")
    fitting = [choice for choice in choices if budget.fits_budget(choice.cost)]
    if not fitting:
        smallest = min(choices, key=lambda choice: choice.cost.training_macs(frozen=budget.frozen))
        macs = smallest.cost.training_macs(frozen=budget.frozen)
        raise ModelError(
            f"no cut fits the budget; the smallest (depth {smallest.depth}, {smallest.groups} groups) needs"
            f" {macs:,} MACs per sample and {smallest.cost.weights * _WEIGHT_BYTES:,} bytes"
        )
    return max(fitting, key=lambda choice: (choice.kept_fraction, choice.depth, -choice.groups))


def _evaluate_choice(layers: Sequence[ChannelLayer], classes: int, depth: int, count: int, held: int) -> GroupChoice:
    sizes = even_sizes(classes, count)
    device_cost = group_cost(layers, sizes, depth, range(held))  # the first groups are the largest
    assembled = group_cost(layers, sizes, depth, range(count))
    return GroupChoice(depth, count, device_cost, min(1.0, assembled.macs / full_model_cost(layers).macs))


def _narrowest_width(layers: Sequence[ChannelLayer], depth: int) -> int:
    """The smallest number of channels that must be divided; the last layer is divided by class instead."""
    mixing = [layer for layer in layers if not layer.depthwise]
    return min((layer.outputs for layer in mixing[depth:-1]), default=mixing[-1].outputs)
