"""Class groups in a round: what a device is sent, which loss it minimises, and the weight of its update.

    the server's layers      trunk…   group 0…   group 1…   group 2…
    a device with 0 and 2    trunk…   group 0…      -       group 2…      as many layers, those of other groups empty

An update's weight is the number of all its samples in the trunk, and of those of the group's own classes in a group.
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

from potluck.model.decoupled.feature_cache import FeatureCache
from potluck.model.decoupled.group_calibration import Extent, calibrate_groups
from potluck.model.decoupled.group_loss import DistillationLoss, GroupLoss
from potluck.model.decoupled.grouped_network import DistilledSubmodel, GroupedNetwork, GroupSubmodel
from potluck.model.layer_chain import LayerChain
from potluck.model.model_replica import Loss, ModelReplica
from potluck.model.model_state import TensorEntry, WeightLayout
from potluck.model.submodel_interface import ExtractedSubmodel, SubmodelChoice, SubmodelSpec, TurnKey
from potluck.model.update_merging import UpdateSum

__all__ = ["GroupExtractor", "GroupSubmodelSpec", "GroupTraining", "GroupWeight", "indices_in_whole"]

Counts = Mapping[int, int]
Batches = Iterable[tuple[Tensor, Tensor]]


class GroupTraining(NamedTuple):
    """How groups are trained and calibrated."""

    counts: Mapping[str, Counts] = {}  # by device: samples of each class in a turn, if known
    streaming: bool = False
    cache: FeatureCache | None = None  # of the trunk's outputs
    calibration_batches: Callable[[], Batches] | None = None
    extent: Extent = "readout"
    most_samples: Mapping[str, int] = {}  # by device: what a turn may train on, where that is limited
    distillation_weight: float = 0.0  # of the assembled network's probabilities in a device's loss


class GroupWeight(NamedTuple):
    """Some entries of a sub-model (their indices in its two vectors) and their fraction of the update's weight."""

    weight_fraction: float
    params: Tensor
    buffers: Tensor


@dataclass(frozen=True, eq=False)
class GroupSubmodelSpec(SubmodelSpec):
    """The trunk and some groups, each with its own weight in the merge."""

    group_weights: Sequence[GroupWeight] = ()

    def add_update(self, total: UpdateSum, params: Tensor, buffers: Tensor, weight: float) -> None:
        for fraction, entries, kept in self.group_weights:
            in_whole = self.params[entries], self.buffers[kept]
            total.add_submodel(params[entries], buffers[kept], weight * fraction, *in_whole)


class GroupExtractor:
    """Sends each device the trunk and the groups that `device_groups` names."""

    extracts_from_replica = False
    averages_changed_only = False
    slicer = None
    chooses_per_batch = False

    def __init__(
        self,
        chain: LayerChain,
        layout: WeightLayout,
        device_groups: Mapping[str, tuple[int, ...]],
        training: GroupTraining | None = None,
    ) -> None:
        assert isinstance(chain.module, GroupedNetwork)
        self.grouped = chain.module
        self.device_groups = device_groups
        self._chain = chain
        self._layout = layout
        self._training = training or GroupTraining()
        self._cached_spec = lru_cache(maxsize=1024)(self._select_groups)
        self._cached_loss = lru_cache(maxsize=1024)(self._group_loss)
        self._cached_layout = lru_cache(maxsize=64)(self._group_layout)

    def device_classes(self, device: str) -> tuple[int, ...]:
        """The classes of a device's groups."""
        return tuple(label for group in self.device_groups[device] for label in self.grouped.spec.groups[group])

    @property
    def caches_trunk(self) -> bool:
        """Whether the trunk's outputs are computed once per sample."""
        return self._training.cache is not None

    @property
    def is_distilled(self) -> bool:
        """Whether devices also run the assembled network."""
        return self._training.distillation_weight > 0

    def most_samples(self, device: str) -> int | None:
        """How many samples a device's turn may train on; None: as many as the local training says."""
        return self._training.most_samples.get(device)

    def select_submodel(self, turn: TurnKey) -> GroupSubmodelSpec:
        return self._cached_spec(turn.device)

    def cost_fraction(self, turn: TurnKey) -> float:
        """The fraction of the MACs of the trunk and all groups."""
        return sum(self.select_submodel(turn).macs) / sum(layer.macs for layer in self._chain.layers)

    def choose_submodel(self, turn: TurnKey, affordable: float, rng: np.random.Generator) -> SubmodelChoice:
        raise AssertionError("a device's groups do not change from batch to batch")

    def extract_submodel(
        self, replica: ModelReplica, turn: TurnKey, choice: SubmodelChoice | None, rng: np.random.Generator
    ) -> ExtractedSubmodel:
        raise AssertionError("groups are trained as separate networks")

    def build_network(self, turn: TurnKey, submodel: SubmodelSpec) -> nn.Module:
        network = self._build_submodel(self.device_groups[turn.device])
        network.input_cache = self._training.cache
        return network

    def _build_submodel(self, groups: tuple[int, ...]) -> GroupSubmodel:
        return DistilledSubmodel(self.grouped, groups) if self.is_distilled else self.grouped.build_submodel(groups)

    def training_loss(self, turn: TurnKey, loss: Loss) -> Loss:
        return self._cached_loss(turn.device)

    def calibration_hook(self) -> Callable[[ModelReplica], None] | None:
        return (
            None
            if self._training.calibration_batches is None
            else lambda replica: self.calibrate_module(replica.module)
        )

    def calibrate_module(self, module: nn.Module) -> None:
        """Make the logits of the network's groups comparable, if the job asks for it."""
        assert isinstance(module, GroupedNetwork)
        batches = self._training.calibration_batches
        if batches is not None and len(module.untrained_groups()) < len(module.spec.groups):
            calibrate_groups(module, batches(), extent=self._training.extent)

    def _group_loss(self, device: str) -> Loss:
        own = [self.grouped.spec.groups[group] for group in self.device_groups[device]]
        counts = self._training.counts.get(device)
        classes, weight = self.grouped.spec.class_count, self._training.distillation_weight
        loss = GroupLoss(own, classes, counts, per_batch=self._training.streaming)
        return DistillationLoss(loss, own, classes, weight) if weight else loss

    def _select_groups(self, device: str) -> GroupSubmodelSpec:
        groups = self.device_groups[device]
        submodel, trunk, branches = self._cached_layout(groups)
        own = [self._own_class_samples(device, group) for group in groups]
        total = max(sum(own), 1)
        weights = [GroupWeight(1.0, *trunk)]
        weights += [GroupWeight(count / total, *branch) for count, branch in zip(own, branches, strict=True) if count]
        return replace(submodel, group_weights=weights)

    def _own_class_samples(self, device: str, group: int) -> int:
        counts = self._training.counts.get(device)
        return 1 if counts is None else sum(counts.get(label, 0) for label in self.grouped.spec.groups[group])

    def _group_layout(
        self, groups: tuple[int, ...]
    ) -> tuple[GroupSubmodelSpec, tuple[Tensor, Tensor], list[tuple[Tensor, Tensor]]]:
        """The sub-model of a device with these groups, and the indices of the trunk and of each group in it."""
        layout = self._restrict_layout(self._build_submodel(groups))
        params, buffers = indices_in_whole(self._layout, layout)
        in_trunk = self._layer_macs(["trunk."])
        trained = self._layer_macs(["trunk.", *(f"groups.{group}." for group in groups)])
        forward = [float(layer.macs) for layer in self._chain.layers]
        once = 0.0
        if self.caches_trunk:  # the trunk is computed once for each sample
            trained, forward, once = _subtract(trained, in_trunk), _subtract(forward, in_trunk), sum(in_trunk)
        teaching = forward if self.is_distilled else ()
        submodel = GroupSubmodelSpec(groups, params, buffers, layout, trained, once, teaching)
        branches = [_prefix_indices(layout, f"groups.{group}.") for group in groups]
        return submodel, _prefix_indices(layout, "trunk."), branches

    def _layer_macs(self, prefixes: Sequence[str]) -> list[float]:
        """The MACs of each of the server's layers whose weights begin with one of these; none for the others."""
        return [
            float(layer.macs) * any(name.startswith(tuple(prefixes)) for name in (*layer.parameters, *layer.buffers))
            for layer in self._chain.layers
        ]

    def _restrict_layout(self, module: GroupSubmodel) -> WeightLayout:
        """The server's layers, as far as this network has them."""
        known = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
        layers = [
            (
                [name for name in layer.parameters if name in known],
                [name for name in layer.changing_buffers if name in known],
            )
            for layer in self._chain.layers
        ]
        layout = WeightLayout.of_module(module, layers, frozen=False)
        return replace(layout, splits=_layers_per_entry([any(names) for names in layers]))


def indices_in_whole(whole: WeightLayout, submodel: WeightLayout) -> tuple[Tensor, Tensor]:
    """For each entry of the sub-model's two vectors its index in the whole's: `whole[indices] = submodel`."""
    params, buffers = ({entry.name: entry for entry in entries} for entries in (whole.params, whole.buffers))
    return (
        _entry_indices([params[entry.name] for entry in submodel.params]),
        _entry_indices([buffers[entry.name] for entry in submodel.buffers]),
    )


def _subtract(macs: Sequence[float], without: Sequence[float]) -> list[float]:
    return [some - less for some, less in zip(macs, without, strict=True)]


def _layers_per_entry(present: Sequence[bool]) -> tuple[int, ...]:
    """How many of the server's layers each layer of the sub-model covers: itself and the empty ones before it."""
    ends = [index + 1 for index, is_present in enumerate(present) if is_present]
    ends[-1] = len(present)
    return tuple(end - start for start, end in pairwise([0, *ends]))


def _prefix_indices(layout: WeightLayout, prefix: str) -> tuple[Tensor, Tensor]:
    params, buffers = (
        _entry_indices([entry for entry in entries if entry.name.startswith(prefix)])
        for entries in (layout.params, layout.buffers)
    )
    return params, buffers


def _entry_indices(entries: Sequence[TensorEntry]) -> Tensor:
    ranges = [torch.arange(entry.start, entry.stop) for entry in entries]
    return torch.cat(ranges) if ranges else torch.zeros(0, dtype=torch.int64)
