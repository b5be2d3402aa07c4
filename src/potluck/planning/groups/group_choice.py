"""Which depth and how many groups: the table of all cuts, and the one that keeps most of the network in a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from potluck.errors import ModelError
from potluck.planning.groups.even_assignment import even_sizes
from potluck.planning.groups.group_costs import ChannelLayer, GroupCost, full_model_cost, group_cost, max_trunk_depth

__all__ = ["DeviceBudget", "GroupChoice", "choose_groups", "group_choices"]

_NUMBER_BYTES = 4

Held = Callable[[int], int]  # how many groups a device trains where there are so many


@dataclass(frozen=True)
class DeviceBudget:
    """What a device can afford for one sample's training step, and for the weights it holds."""

    macs: float = math.inf
    weight_bytes: float = math.inf
    frozen: bool = False  # whether the trunk only runs forward

    def fits_budget(self, cost: GroupCost) -> bool:
        macs = cost.training_macs(frozen=self.frozen)
        return macs <= self.macs and cost.weights * _NUMBER_BYTES <= self.weight_bytes


@dataclass(frozen=True)
class GroupChoice:
    """One way to cut: the dearest device's cost, and how much of the network's arithmetic the assembled one keeps."""

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
    held: Held = _one_group,
) -> Iterator[GroupChoice]:
    """All cuts, or those of some depths and numbers of groups; `held` says how many of them a device trains."""
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
    held: Held = _one_group,
) -> GroupChoice:
    """The cut within the budget whose assembled network keeps most of the whole one; ModelError if none fits."""
    found = list(group_choices(layers, classes, counts, depths, held))
    if not found:
        raise ModelError(f"the network cannot be cut into {tuple(counts) or classes} groups; ask for fewer")
    fitting = [choice for choice in found if budget.fits_budget(choice.cost)]
    if not fitting:
        least = min(found, key=lambda choice: choice.cost.training_macs(frozen=budget.frozen))
        macs = least.cost.training_macs(frozen=budget.frozen)
        raise ModelError(
            f"no cut fits the budget; the smallest (depth {least.depth}, {least.groups} groups) needs {macs:,} MACs"
            f" a sample and {least.cost.weights * _NUMBER_BYTES:,} bytes"
        )
    return max(fitting, key=lambda choice: (choice.kept_fraction, choice.depth, -choice.groups))


def _evaluate_choice(layers: Sequence[ChannelLayer], classes: int, depth: int, count: int, held: int) -> GroupChoice:
    sizes = even_sizes(classes, count)
    paid = group_cost(layers, sizes, depth, range(held))  # the first groups are the largest
    assembled = group_cost(layers, sizes, depth, range(count))
    return GroupChoice(depth, count, paid, min(1.0, assembled.macs / full_model_cost(layers).macs))


def _narrowest_width(layers: Sequence[ChannelLayer], depth: int) -> int:
    """The smallest number of channels that must be divided; the last layer is divided by classes."""
    mixing = [layer for layer in layers if not layer.depthwise]
    return min((layer.outputs for layer in mixing[depth:-1]), default=mixing[-1].outputs)
