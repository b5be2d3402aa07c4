"""The cost of a trunk and some of the class groups, exactly as the network is built.

    shared + first decoupled / m + rest / m²        for one of m groups, up to widths that do not divide evenly

A layer's cost is proportional to its pairs of input and output channels, so a narrower one needs only its two widths.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potluck.planning.groups.channel_graph import EVERYONE, ChannelGraph, ChannelStep

__all__ = ["GroupCost", "GroupCosts", "full_model_cost", "group_cost", "group_costs", "max_trunk_depth"]

OTHER = 1  # each group has one logit for all classes of other groups

Counts = npt.NDArray[np.int64]  # one for each group


@dataclass(frozen=True)
class GroupCost:
    """MACs of one sample's forward pass, and weights to hold.

    `*_entry` are the MACs of the layers that nothing trained precedes in the trunk or in the groups.
    """

    trunk_macs: int
    group_macs: int
    trunk_entry: int
    group_entry: int
    trunk_weights: int
    group_weights: int

    @property
    def macs(self) -> int:
        return self.trunk_macs + self.group_macs

    @property
    def weights(self) -> int:
        return self.trunk_weights + self.group_weights

    def training_macs(self, *, frozen: bool, cached: bool = False) -> int:
        """MACs of one sample's training step: three times the forward pass, less the gradients that are not needed.

        The first trained layers need no gradient of their input, and a frozen trunk only runs forward, or not at all
        if its outputs are `cached`.
        """
        if frozen:
            return (0 if cached else self.trunk_macs) + 3 * self.group_macs - self.group_entry
        entry = self.trunk_entry if self.trunk_macs else self.group_entry
        return 3 * self.macs - entry


@dataclass(frozen=True)
class GroupCosts:
    """The cost of a trunk, and of each of the groups on it."""

    trunk: GroupCost
    macs: Counts
    entry: Counts
    weights: Counts

    def of_groups(self, chosen: Collection[int]) -> GroupCost:
        """Of the trunk and these groups."""
        wanted = list(chosen)
        macs, entry, weights = (int(each[wanted].sum()) for each in (self.macs, self.entry, self.weights))
        trunk = self.trunk
        return GroupCost(trunk.trunk_macs, macs, trunk.trunk_entry, entry, trunk.trunk_weights, weights)


def full_model_cost(graph: ChannelGraph) -> GroupCost:
    """The cost of the whole network, as a trunk without groups."""
    return _trunk_cost(graph, len(graph.steps))


def group_cost(graph: ChannelGraph, sizes: Sequence[int], depth: int, chosen: Collection[int] = (0,)) -> GroupCost:
    """The cost of a trunk of `depth` layers and the chosen groups; `sizes` is the number of classes of each group."""
    return group_costs(graph, sizes, depth).of_groups(chosen)


def group_costs(graph: ChannelGraph, sizes: Sequence[int], depth: int) -> GroupCosts:
    """The cost of a trunk of `depth` layers and of each group; `sizes` is the number of classes of each."""
    end, count = graph.trunk_end(depth), len(sizes)
    macs, entry, weights = (np.zeros(count, np.int64) for _ in range(3))
    trained: set[int] = set()
    for owned in graph.own_channels(end, np.repeat(np.arange(count), sizes)):
        index, step = owned.index, graph.steps[owned.index]
        if not trained.isdisjoint(step.sources) or step.has_weights:
            trained.add(index)
        if not step.has_weights:
            continue
        width = _group_widths(owned.outputs, count) + (OTHER if index == len(graph.steps) - 1 else 0)
        pairs = width * (_group_widths(owned.inputs[0], count) if step.kind == "mix" else step.reads)
        macs += step.macs * pairs
        weights += step.weights * pairs + step.extras * width
        if trained.isdisjoint(step.sources):
            entry += step.macs * pairs
    return GroupCosts(_trunk_cost(graph, end), macs, entry, weights)


def max_trunk_depth(graph: ChannelGraph) -> int:
    """The largest depth, at which all but the last layers are shared."""
    return max(graph.trunk_ends)


def _group_widths(owners: Counts, groups: int) -> Counts:
    """How many of these channels each group has."""
    shared = owners == EVERYONE
    return np.bincount(owners[~shared], minlength=groups) + int(shared.sum())


def _trunk_cost(graph: ChannelGraph, end: int) -> GroupCost:
    """The cost of the first `end` steps at full width."""
    macs = entry = weights = 0
    trained: set[int] = set()
    for index, step in enumerate(graph.steps[:end]):
        pairs = step.channels * (_source_channels(graph, step) if step.kind == "mix" else step.reads)
        macs += step.macs * pairs
        weights += step.weights * pairs + step.extras * step.channels
        if trained.isdisjoint(step.sources):
            entry += step.macs * pairs
        if step.has_weights or not trained.isdisjoint(step.sources):
            trained.add(index)
    return GroupCost(macs, 0, entry, 0, weights, 0)


def _source_channels(graph: ChannelGraph, step: ChannelStep) -> int:
    source = step.sources[0]
    return graph.inputs if source < 0 else graph.steps[source].channels
