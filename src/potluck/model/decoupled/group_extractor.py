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

from potluck.model.decoupled.group_calibration import Extent, calibrate_groups
from potluck.model.decoupled.group_loss import GroupLoss
from potluck.model.decoupled.grouped_network import GroupedNetwork, GroupSubmodel
from potluck.model.decoupled.submodel_indices import indices_in_whole
from potluck.model.layer_chain import LayerChain
from potluck.model.model_replica import Loss, ModelReplica
from potluck.model.model_state import TensorEntry, WeightLayout
from potluck.model.submodel_interface import ExtractedSubmodel, SubmodelChoice, SubmodelSpec, TurnKey
from potluck.model.update_merging import UpdateSum

__all__ = ["GroupExtractor", "GroupSubmodelSpec", "GroupWeight"]

Counts = Mapping[int, int]
Batches = Iterable[tuple[Tensor, Tensor]]


class GroupWeight(NamedTuple):
    """Some numbers of a part (their places in its two vectors) and the share of the update's weight they have."""

    weight_fraction: float
    params: Tensor
    buffers: Tensor


@dataclass(frozen=True, eq=False)
class GroupSubmodelSpec(SubmodelSpec):
    """The trunk and some groups, each of which weighs on its own."""

    group_weights: Sequence[GroupWeight] = ()

    def add_update(self, total: UpdateSum, params: Tensor, buffers: Tensor, weight: float) -> None:
        for share, these, kept in self.group_weights:
            entries = self.params[these], self.buffers[kept]
            total.add_submodel(params[these], buffers[kept], weight * share, *entries)


class GroupExtractor:
    """`held` are each device's groups; `counts` its samples of each class in a turn, where they are known."""

    extracts_from_replica = False
    averages_changed_only = False
    chooses_per_batch = False

    def __init__(
        self,
        chain: LayerChain,
        layout: WeightLayout,
        held: Mapping[str, tuple[int, ...]],
        counts: Mapping[str, Counts] | None = None,
        fitting: Callable[[], Batches] | None = None,
        extent: Extent = "readout",
    ) -> None:
        assert isinstance(chain.module, GroupedNetwork)
        self.grouped = chain.module
        self.device_groups = held
        self._chain = chain
        self._layout = layout
        self._counts = counts or {}
        self._calibration_batches = fitting
        self._extent = extent
        self._cached_spec = lru_cache(maxsize=1024)(self._select_groups)
        self._cached_loss = lru_cache(maxsize=1024)(self._group_loss)
        self._cached_layout = lru_cache(maxsize=64)(self._group_layout)

    def device_classes(self, device: str) -> tuple[int, ...]:
        """The classes of a device's groups."""
        return tuple(label for group in self.device_groups[device] for label in self.grouped.spec.groups[group])

    def select_submodel(self, turn: TurnKey) -> GroupSubmodelSpec:
        return self._cached_spec(turn.device)

    def cost_fraction(self, turn: TurnKey) -> float:
        """Of the trunk and all groups."""
        return sum(self.select_submodel(turn).macs) / sum(layer.macs for layer in self._chain.layers)

    def choose_submodel(self, turn: TurnKey, affordable: float, draws: np.random.Generator) -> SubmodelChoice:
        raise AssertionError("a device's groups are always the same")

    def extract_submodel(
        self, replica: ModelReplica, turn: TurnKey, choice: SubmodelChoice | None, draws: np.random.Generator
    ) -> ExtractedSubmodel:
        raise AssertionError("groups are networks of their own")

    def build_network(self, turn: TurnKey, part: SubmodelSpec) -> nn.Module:
        return self.grouped.build_submodel(self.device_groups[turn.device])

    def training_loss(self, turn: TurnKey, loss: Loss) -> Loss:
        return self._cached_loss(turn.device)

    def calibration_hook(self) -> Callable[[ModelReplica], None] | None:
        return None if self._calibration_batches is None else lambda replica: self.calibrate_module(replica.module)

    def calibrate_module(self, module: nn.Module) -> None:
        """Make the logits of the whole network's groups comparable, where that was asked for."""
        assert isinstance(module, GroupedNetwork)
        if self._calibration_batches is not None and len(module.untrained_groups()) < len(module.spec.groups):
            calibrate_groups(module, self._calibration_batches(), extent=self._extent)

    def _group_loss(self, device: str) -> Loss:
        own = [self.grouped.spec.groups[group] for group in self.device_groups[device]]
        return GroupLoss(own, self.grouped.spec.class_count, self._counts.get(device))

    def _select_groups(self, device: str) -> GroupSubmodelSpec:
        groups = self.device_groups[device]
        part, trunk, branches = self._cached_layout(groups)
        own = [self._own_class_samples(device, group) for group in groups]
        total = max(sum(own), 1)
        weighed = [GroupWeight(1.0, *trunk)]
        weighed += [GroupWeight(count / total, *branch) for count, branch in zip(own, branches, strict=True) if count]
        return replace(part, group_weights=weighed)

    def _own_class_samples(self, device: str, group: int) -> int:
        counts = self._counts.get(device)
        return 1 if counts is None else sum(counts.get(label, 0) for label in self.grouped.spec.groups[group])

    def _group_layout(
        self, groups: tuple[int, ...]
    ) -> tuple[GroupSubmodelSpec, tuple[Tensor, Tensor], list[tuple[Tensor, Tensor]]]:
        """The part of a device with these groups, and where in it the trunk lies and each group."""
        module = self.grouped.build_submodel(groups)
        layout, macs = self._restrict_layout(module)
        params, buffers = indices_in_whole(self._layout, layout)
        part = GroupSubmodelSpec(groups, params, buffers, layout, macs)
        return (
            part,
            _prefix_indices(layout, "trunk."),
            [_prefix_indices(layout, f"groups.{group}.") for group in groups],
        )

    def _restrict_layout(self, module: GroupSubmodel) -> tuple[WeightLayout, list[float]]:
        """The server's layers as far as this network has them."""
        known = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
        layers = [
            ([name for name in layer.parameters if name in known], [name for name in layer.buffers if name in known])
            for layer in self._chain.layers
        ]
        macs = [
            float(layer.macs) if any(names) else 0.0 for layer, names in zip(self._chain.layers, layers, strict=True)
        ]
        layout = WeightLayout.of_module(module, layers)
        return replace(layout, splits=_layers_per_entry([any(names) for names in layers])), macs


def _layers_per_entry(held: Sequence[bool]) -> tuple[int, ...]:
    """How many of the server's layers each layer of the part stands for: itself and the empty ones before it."""
    ends = [place + 1 for place, here in enumerate(held) if here]
    ends[-1] = len(held)
    return tuple(end - start for start, end in pairwise([0, *ends]))


def _prefix_indices(layout: WeightLayout, beginning: str) -> tuple[Tensor, Tensor]:
    return _entry_indices(layout.params, beginning), _entry_indices(layout.buffers, beginning)


def _entry_indices(entries: Sequence[TensorEntry], beginning: str) -> Tensor:
    found = [torch.arange(entry.start, entry.stop) for entry in entries if entry.name.startswith(beginning)]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)
