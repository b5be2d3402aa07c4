"""Chooses trunk depth and number of groups: the cut within a budget that keeps most of the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from potluck.errors import ModelError
from potluck.planning.groups.channel_graph import ChannelGraph
from potluck.planning.groups.even_assignment import even_sizes
from potluck.planning.groups.group_costs import GroupCost, full_model_cost, group_costs

__all__ = ["DeviceBudget", "GroupChoice", "choose_groups", "group_choices"]

_WEIGHT_BYTES = 4

HeldCount = Callable[[int], int]  # number of groups a device trains, by the number of groups


@dataclass(frozen=True)
class DeviceBudget:
    """What a device can afford: MACs of one sample's training step, and bytes of weights."""

    macs: float = math.inf
    weight_bytes: float = math.inf
    frozen: bool = False  # whether the trunk only runs forward
    cached: bool = False  # whether that is done beforehand

    def step_macs(self, cost: GroupCost) -> int:
        """What a training step of this cost counts as."""
        return cost.training_macs(frozen=self.frozen, cached=self.cached)

    def fits_budget(self, cost: GroupCost) -> bool:
        return self.step_macs(cost) <= self.macs and cost.weights * _WEIGHT_BYTES <= self.weight_bytes


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
    graph: ChannelGraph,
    classes: int,
    counts: Sequence[int] = (),
    depths: Sequence[int] = (),
    held: HeldCount = _one_group,
) -> Iterator[GroupChoice]:
    """All cuts, or those with the given depths and group counts; `held` says how many groups a device trains."""
    for depth in depths or sorted(graph.trunk_ends):
        widest = graph.max_groups(depth)
        for count in counts or range(1, classes + 1):
            if held(count) <= count <= widest:
                yield _evaluate_choice(graph, classes, depth, count, held(count))


def choose_groups(
    graph: ChannelGraph,
    classes: int,
    budget: DeviceBudget,
    counts: Sequence[int] = (),
    depths: Sequence[int] = (),
    held: HeldCount = _one_group,
) -> GroupChoice:
    """The cut within the budget that keeps the largest fraction of the network; ModelError if none fits."""
    choices = list(group_choices(graph, classes, counts, depths, held))
    if not choices:
        raise ModelError(f"the network cannot be cut into {tuple(counts) or classes} groups; ask for fewer")
    fitting = [choice for choice in choices if budget.fits_budget(choice.cost)]
    if not fitting:
        smallest = min(choices, key=lambda choice: budget.step_macs(choice.cost))
        macs = budget.step_macs(smallest.cost)
        raise ModelError(
            f"no cut fits the budget; the smallest (depth {smallest.depth}, {smallest.groups} groups) needs"
            f" {macs:,} MACs per sample and {smallest.cost.weights * _WEIGHT_BYTES:,} bytes"
        )
    return max(fitting, key=lambda choice: (choice.kept_fraction, choice.depth, -choice.groups))


def _evaluate_choice(graph: ChannelGraph, classes: int, depth: int, count: int, held: int) -> GroupChoice:
    costs = group_costs(graph, even_sizes(classes, count), depth)
    device_cost = costs.of_groups(range(held))  # the first groups are the largest
    assembled = costs.of_groups(range(count))
    return GroupChoice(depth, count, device_cost, min(1.0, assembled.macs / full_model_cost(graph).macs))
