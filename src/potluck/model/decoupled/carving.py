"""Class groups in a round: what a device is sent, what it minimises, and what its update weighs.

    the server's layers      trunk…   group 0…   group 1…   group 2…
    a device with 0 and 2    trunk…   group 0…      -       group 2…      as many layers, those it does not hold empty

An update weighs in the trunk by all of its samples, and in a group by those of the group's own classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from potluck.model.carving import Choice, Loan, Part, Turn
from potluck.model.chain import Chain
from potluck.model.decoupled.calibration import calibrate
from potluck.model.decoupled.grouped import Grouped, Submodel
from potluck.model.decoupled.losses import GroupLoss
from potluck.model.decoupled.places import places
from potluck.model.merge import Sum
from potluck.model.replica import Loss, Replica
from potluck.model.state import Entry, Layout

__all__ = ["GroupCarver", "GroupPart", "Weighed"]

Counts = Mapping[int, int]
Batches = Iterable[tuple[Tensor, Tensor]]


class Weighed(NamedTuple):
    """Some numbers of a part (their places in its two vectors) and the share of the update's weight they have."""

    share: float
    params: Tensor
    buffers: Tensor


@dataclass(frozen=True, eq=False)
class GroupPart(Part):
    """The trunk and some groups, each of which weighs on its own."""

    weighed: Sequence[Weighed] = ()

    def add_to(self, total: Sum, params: Tensor, buffers: Tensor, weight: float) -> None:
        for share, these, kept in self.weighed:
            entries = self.params[these], self.buffers[kept]
            total.add_part(params[these], buffers[kept], weight * share, *entries)


class GroupCarver:
    """`held` are each device's groups; `counts` its samples of each class in a turn, where they are known."""

    lends = False
    unmoved_is_untrained = False
    chooses = False

    def __init__(
        self,
        chain: Chain,
        layout: Layout,
        held: Mapping[str, tuple[int, ...]],
        counts: Mapping[str, Counts] | None = None,
        fitting: Callable[[], Batches] | None = None,
    ) -> None:
        assert isinstance(chain.module, Grouped)
        self.grouped = chain.module
        self.held = held
        self._chain = chain
        self._layout = layout
        self._counts = counts or {}
        self._fitting = fitting
        self._selected = lru_cache(maxsize=1024)(self._select)
        self._losses = lru_cache(maxsize=1024)(self._loss)
        self._shape = lru_cache(maxsize=64)(self._shaped)

    def own(self, device: str) -> tuple[int, ...]:
        """The classes of a device's groups."""
        return tuple(label for group in self.held[device] for label in self.grouped.plan.groups[group])

    def select(self, turn: Turn) -> GroupPart:
        return self._selected(turn.device)

    def share(self, turn: Turn) -> float:
        """Of the trunk and all groups."""
        return sum(self.select(turn).macs) / sum(layer.macs for layer in self._chain.layers)

    def choose(self, turn: Turn, affordable: float, draws: np.random.Generator) -> Choice:
        raise AssertionError("a device's groups are always the same")

    def lend(self, replica: Replica, turn: Turn, choice: Choice | None, draws: np.random.Generator) -> Loan:
        raise AssertionError("groups are networks of their own")

    def network(self, turn: Turn, part: Part) -> nn.Module:
        return self.grouped.submodel(self.held[turn.device])

    def loss(self, turn: Turn, loss: Loss) -> Loss:
        return self._losses(turn.device)

    def calibration(self) -> Callable[[Replica], None] | None:
        return None if self._fitting is None else lambda replica: self.calibrate(replica.module)

    def calibrate(self, module: nn.Module) -> None:
        """Make the logits of the whole network's groups comparable, where that was asked for."""
        assert isinstance(module, Grouped)
        if self._fitting is not None and len(module.untrained()) < len(module.plan.groups):
            calibrate(module, self._fitting())

    def _loss(self, device: str) -> Loss:
        own = [self.grouped.plan.groups[group] for group in self.held[device]]
        return GroupLoss(own, self.grouped.plan.classes, self._counts.get(device))

    def _select(self, device: str) -> GroupPart:
        groups = self.held[device]
        part, trunk, branches = self._shape(groups)
        own = [self._own_samples(device, group) for group in groups]
        total = max(sum(own), 1)
        weighed = [Weighed(1.0, *trunk)]
        weighed += [Weighed(count / total, *branch) for count, branch in zip(own, branches, strict=True) if count]
        return replace(part, weighed=weighed)

    def _own_samples(self, device: str, group: int) -> int:
        counts = self._counts.get(device)
        return 1 if counts is None else sum(counts.get(label, 0) for label in self.grouped.plan.groups[group])

    def _shaped(self, groups: tuple[int, ...]) -> tuple[GroupPart, tuple[Tensor, Tensor], list[tuple[Tensor, Tensor]]]:
        """The part of a device with these groups, and where in it the trunk lies and each group."""
        module = self.grouped.submodel(groups)
        layout, macs = self._narrowed(module)
        params, buffers = places(self._layout, layout)
        part = GroupPart(groups, params, buffers, layout, macs)
        return part, _lying(layout, "trunk."), [_lying(layout, f"groups.{group}.") for group in groups]

    def _narrowed(self, module: Submodel) -> tuple[Layout, list[float]]:
        """The server's layers as far as this network has them."""
        known = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
        layers = [
            ([name for name in layer.parameters if name in known], [name for name in layer.buffers if name in known])
            for layer in self._chain.layers
        ]
        macs = [
            float(layer.macs) if any(names) else 0.0 for layer, names in zip(self._chain.layers, layers, strict=True)
        ]
        layout = Layout.of(module, layers)
        return replace(layout, pieces=_pieces([any(names) for names in layers])), macs


def _pieces(held: Sequence[bool]) -> tuple[int, ...]:
    """How many of the server's layers each layer of the part stands for: itself and the empty ones before it."""
    ends = [place + 1 for place, here in enumerate(held) if here]
    ends[-1] = len(held)
    return tuple(end - start for start, end in pairwise([0, *ends]))


def _lying(layout: Layout, beginning: str) -> tuple[Tensor, Tensor]:
    return _entries(layout.params, beginning), _entries(layout.buffers, beginning)


def _entries(entries: Sequence[Entry], beginning: str) -> Tensor:
    found = [torch.arange(entry.start, entry.stop) for entry in entries if entry.name.startswith(beginning)]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)
