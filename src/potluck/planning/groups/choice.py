"""Which depth and how many groups: the table of all cuts, and the one that keeps most of the network in a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from potluck.errors import ModelError
from potluck.planning.groups.costs import Cost, Layer, cost, deepest, whole
from potluck.planning.groups.shares import even_sizes

__all__ = ["Budget", "Choice", "choose", "table"]

_NUMBER_BYTES = 4

Held = Callable[[int], int]  # how many groups a device trains where there are so many


@dataclass(frozen=True)
class Budget:
    """What a device can afford for one sample's training step, and for the weights it holds."""

    macs: float = math.inf
    weight_bytes: float = math.inf
    frozen: bool = False  # whether the trunk only runs forward

    def allows(self, cost: Cost) -> bool:
        macs = cost.training_macs(frozen=self.frozen)
        return macs <= self.macs and cost.weights * _NUMBER_BYTES <= self.weight_bytes


@dataclass(frozen=True)
class Choice:
    """One way to cut: the dearest device's cost, and how much of the network's arithmetic the assembled one keeps."""

    depth: int
    groups: int
    cost: Cost
    kept: float


def _one(count: int) -> int:
    return 1


def table(
    layers: Sequence[Layer], classes: int, counts: Sequence[int] = (), depths: Sequence[int] = (), held: Held = _one
) -> Iterator[Choice]:
    """All cuts, or those of some depths and numbers of groups; `held` says how many of them a device trains."""
    for depth in depths or range(deepest(layers) + 1):
        for count in counts or range(1, classes + 1):
            if held(count) <= count <= _narrowest(layers, depth):
                yield _choice(layers, classes, depth, count, held(count))


def choose(
    layers: Sequence[Layer],
    classes: int,
    budget: Budget,
    counts: Sequence[int] = (),
    depths: Sequence[int] = (),
    held: Held = _one,
) -> Choice:
    """The cut within the budget whose assembled network keeps most of the whole one; ModelError if none fits."""
    found = list(table(layers, classes, counts, depths, held))
    if not found:
        raise ModelError(f"the network cannot be cut into {tuple(counts) or classes} groups; ask for fewer")
    fitting = [choice for choice in found if budget.allows(choice.cost)]
    if not fitting:
        least = min(found, key=lambda choice: choice.cost.training_macs(frozen=budget.frozen))
        macs = least.cost.training_macs(frozen=budget.frozen)
        raise ModelError(
            f"no cut fits the budget; the smallest (depth {least.depth}, {least.groups} groups) needs {macs:,} MACs"
            f" a sample and {least.cost.weights * _NUMBER_BYTES:,} bytes"
        )
    return max(fitting, key=lambda choice: (choice.kept, choice.depth, -choice.groups))


def _choice(layers: Sequence[Layer], classes: int, depth: int, count: int, held: int) -> Choice:
    sizes = even_sizes(classes, count)
    paid = cost(layers, sizes, depth, range(held))  # the first groups are the largest
    assembled = cost(layers, sizes, depth, range(count))
    return Choice(depth, count, paid, min(1.0, assembled.macs / whole(layers).macs))


def _narrowest(layers: Sequence[Layer], depth: int) -> int:
    """The smallest number of channels that must be divided; the last layer is divided by classes."""
    mixing = [layer for layer in layers if not layer.depthwise]
    return min((layer.outputs for layer in mixing[depth:-1]), default=mixing[-1].outputs)
