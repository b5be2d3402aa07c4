"""The grouped network, a shared trunk with one branch per class group, and the sub-model that one device trains.

    inputs ──▶ trunk ──┬──▶ groups.0: stages ──▶ readout ──┐
                       ├──▶ groups.1: stages ──▶ readout ──┼──▶ logits in the order of the classes
                       └──▶ groups.2: stages ──▶ readout ──┘

Parameters have the same names in the whole network and in a sub-model, so contributions are merged by name.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import Self

import msgspec
import torch
from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model.decoupled.feature_cache import FeatureCache
from potluck.model.decoupled.group_readout import GroupReadout
from potluck.model.decoupled.layer_graph import LayerGraph
from potluck.model.decoupled.layer_spec import LayerSpec
from potluck.planning.groups import ChannelGraph, Groups

__all__ = [
    "AssembledNetwork",
    "DistilledSubmodel",
    "GroupBranch",
    "GroupSubmodel",
    "GroupedNetwork",
    "GroupedNetworkSpec",
]


class GroupedNetworkSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The complete description of a grouped network without its weights."""

    shape: tuple[int, ...]
    groups: Groups
    depth: int
    trunk: tuple[LayerSpec, ...]
    branches: tuple[tuple[LayerSpec, ...], ...]
    normalised: bool = True

    @property
    def class_count(self) -> int:
        return sum(map(len, self.groups))


class GroupBranch(nn.Module):
    """One group: its layers from the trunk's features to its logits, the last of which is "other"."""

    def __init__(self, stages: Sequence[LayerSpec], own: int, classes: int, normalised: bool) -> None:
        super().__init__()
        self.stages = LayerGraph(stages)
        self.readout = GroupReadout(own, classes, normalised)

    def forward(self, features: Tensor, raw: bool = False) -> Tensor:
        logits: Tensor = self.readout(self.stages(features), raw=raw)
        return logits


class AssembledNetwork(nn.Module):
    """An ordinary network from inputs to logits in class order; the logits of an untrained group are -inf."""

    def __init__(self, spec: GroupedNetworkSpec) -> None:
        super().__init__()
        self.spec = spec
        self.trunk = LayerGraph(spec.trunk)
        self.groups = nn.ModuleDict(
            {
                str(number): GroupBranch(spec.branches[number], len(own), spec.class_count, spec.normalised)
                for number, own in enumerate(spec.groups)
            }
        )
        grouped_labels = [label for own in spec.groups for label in own]
        self._order = [grouped_labels.index(label) for label in range(spec.class_count)]

    def forward(self, inputs: Tensor) -> Tensor:
        return self.classify_features(self.trunk(inputs))

    def classify_features(self, features: Tensor) -> Tensor:
        """The logits, given what the trunk outputs."""
        logits = torch.cat([group(features) for group in self.groups.values()], dim=1)
        return logits[:, self._order]

    def untrained_groups(self) -> tuple[int, ...]:
        """The groups that no device has trained so far; their classes are never predicted."""
        return tuple(number for number in range(len(self.spec.groups)) if not self.group_branch(number).readout.trained)

    def group_branch(self, number: int) -> GroupBranch:
        branch = self.groups[str(number)]
        assert isinstance(branch, GroupBranch)
        return branch


class GroupedNetwork(AssembledNetwork):
    """The coordinator's network, from which devices' sub-models are built and the final network is assembled.

    `graph` are the channels of the original network, for planning. A `frozen` trunk is not trained.
    """

    def __init__(self, spec: GroupedNetworkSpec, graph: ChannelGraph, frozen: bool = False) -> None:
        super().__init__(spec)
        self.graph = graph
        self.frozen = frozen
        self.trunk.requires_grad_(not frozen)

    def build_submodel(self, groups: Collection[int]) -> GroupSubmodel:
        """A copy of the trunk and these groups, to be trained."""
        return GroupSubmodel(self, check_group_indices(groups, len(self.spec.groups)))

    def trained_names(self, groups: Collection[int]) -> tuple[str, ...]:
        """The names of the parameters and buffers that a device with these groups trains."""
        prefixes = [f"groups.{group}." for group in check_group_indices(groups, len(self.spec.groups))]
        wanted = tuple(prefixes if self.frozen else ["trunk.", *prefixes])
        return tuple(name for name in self.state_dict() if name.startswith(wanted))

    def assemble(self) -> AssembledNetwork:
        """An ordinary network with these weights, in evaluation mode."""
        assembled = AssembledNetwork(self.spec)
        assembled.load_state_dict(self.state_dict())
        return assembled.eval()


class GroupSubmodel(nn.Module):
    """What a device trains: the trunk and some groups. Returns all their logits in a row, including "other".

    With an `input_cache` it is given the trunk's outputs instead of samples.
    """

    input_cache: FeatureCache | None = None

    def __init__(self, whole: GroupedNetwork, groups: Sequence[int]) -> None:
        super().__init__()
        self.group_indices = tuple(groups)
        self.own_classes = tuple(whole.spec.groups[number] for number in groups)
        self.frozen = whole.frozen
        self.trunk = copy.deepcopy(whole.trunk)
        self.groups = nn.ModuleDict({str(number): copy.deepcopy(whole.group_branch(number)) for number in groups})
        self.train()

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.trunk(inputs) if self.input_cache is None else inputs
        return torch.cat([group(features, raw=True) for group in self.groups.values()], dim=1)

    def train(self, mode: bool = True) -> Self:
        """Keep a frozen trunk in evaluation mode, so that its batch-norm statistics do not change."""
        super().train(mode)
        if self.frozen:
            self.trunk.eval()
        return self


class DistilledSubmodel(GroupSubmodel):
    """A sub-model that also holds the other groups, to learn from the assembled network as it was pulled.

    Returns the logits of its own groups as `GroupSubmodel` does, and behind them the assembled network's probabilities
    of all classes; zeros while a group is untrained.
    """

    def __init__(self, whole: GroupedNetwork, groups: Sequence[int]) -> None:
        super().__init__(whole, range(len(whole.spec.groups)))
        self.group_indices = tuple(groups)
        self.own_classes = tuple(whole.spec.groups[number] for number in groups)
        self._teacher = [AssembledNetwork(whole.spec)]  # in a list, so that it is not among the trained weights

    def begin_turn(self) -> None:
        """Remember the network as it was pulled; called when all of its weights are there."""
        self._teacher[0].load_state_dict(self.state_dict())
        self._teacher[0].eval()

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.trunk(inputs) if self.input_cache is None else inputs
        own = [self.groups[str(number)](features, raw=True) for number in self.group_indices]
        return torch.cat([*own, self._soft_targets(inputs).to(features.dtype)], dim=1)

    @torch.no_grad()
    def _soft_targets(self, inputs: Tensor) -> Tensor:
        (teacher,) = self._teacher
        logits = teacher(inputs) if self.input_cache is None else teacher.classify_features(inputs)
        return torch.zeros_like(logits) if teacher.untrained_groups() else logits.softmax(dim=1)


def check_group_indices(groups: Collection[int], count: int) -> tuple[int, ...]:
    """The group indices in order; ModelError if one does not exist or none is given."""
    unknown = [group for group in groups if not 0 <= group < count]
    if unknown or not groups:
        what = f"there is no group {unknown[0]}" if unknown else "no group was given"
        raise ModelError(f"{what}; groups are numbered from 0 to {count - 1}")
    return tuple(sorted(set(groups)))
