"""A trunk and the groups that grow out of it: the whole of it, and the part that one device trains.

    inputs ──▶ trunk ──┬──▶ groups.0: stages ──▶ readout ──┐
                       ├──▶ groups.1: stages ──▶ readout ──┼──▶ logits in the order of the classes
                       └──▶ groups.2: stages ──▶ readout ──┘

Parameters have the same names in the whole and in a part, so a harvest goes by name.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Self

import msgspec
import torch
from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model.decoupled.group_readout import GroupReadout
from potluck.model.decoupled.layer_spec import LayerSpec
from potluck.planning.groups import ChannelLayer, Groups

__all__ = ["AssembledNetwork", "GroupBranch", "GroupSubmodel", "GroupedNetwork", "GroupedNetworkSpec"]


class GroupedNetworkSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A grouped network in words, complete but for its numbers."""

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
    """One group: layers of its own down to its own logits, the last of which is "other"."""

    def __init__(self, stages: Sequence[LayerSpec], own: int, classes: int, normalised: bool) -> None:
        super().__init__()
        self.stages = _build_sequential(stages)
        self.readout = GroupReadout(own, classes, normalised)

    def forward(self, features: Tensor, raw: bool = False) -> Tensor:
        logits: Tensor = self.readout(self.stages(features), raw=raw)
        return logits


class AssembledNetwork(nn.Module):
    """One ordinary network: inputs to logits in the order of the classes; a group nobody trained has -inf."""

    def __init__(self, plan: GroupedNetworkSpec) -> None:
        super().__init__()
        self.spec = plan
        self.trunk = _build_sequential(plan.trunk)
        self.groups = nn.ModuleDict(
            {
                str(number): GroupBranch(plan.branches[number], len(own), plan.class_count, plan.normalised)
                for number, own in enumerate(plan.groups)
            }
        )
        together = [label for own in plan.groups for label in own]
        self._order = [together.index(label) for label in range(plan.class_count)]

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.trunk(inputs)
        logits = torch.cat([group(features) for group in self.groups.values()], dim=1)
        return logits[:, self._order]

    def untrained_groups(self) -> tuple[int, ...]:
        """The groups that nobody has trained so far, which therefore never win."""
        return tuple(number for number in range(len(self.spec.groups)) if not self.group_branch(number).readout.trained)

    def group_branch(self, number: int) -> GroupBranch:
        branch = self.groups[str(number)]
        assert isinstance(branch, GroupBranch)
        return branch


class GroupedNetwork(AssembledNetwork):
    """The network that a coordinator holds: takes itself apart for devices and together again.

    `layers` are those of the original network, for planning. A `frozen` trunk is trained by nobody.
    """

    def __init__(self, plan: GroupedNetworkSpec, layers: Sequence[ChannelLayer] = (), frozen: bool = False) -> None:
        super().__init__(plan)
        self.layers = tuple(layers)
        self.frozen = frozen
        self.trunk.requires_grad_(not frozen)

    def build_submodel(self, groups: Collection[int]) -> GroupSubmodel:
        """The trunk and these groups, a copy to train."""
        return GroupSubmodel(self, check_group_indices(groups, len(self.spec.groups)))

    def trained_names(self, groups: Collection[int]) -> tuple[str, ...]:
        """Parameters and buffers that a device with these groups trains, as they are called here and there."""
        prefixes = [f"groups.{group}." for group in check_group_indices(groups, len(self.spec.groups))]
        wanted = tuple(prefixes if self.frozen else ["trunk.", *prefixes])
        return tuple(name for name in self.state_dict() if name.startswith(wanted))

    def assemble(self) -> AssembledNetwork:
        """One ordinary network with these numbers, ready to run."""
        assembled = AssembledNetwork(self.spec)
        assembled.load_state_dict(self.state_dict())
        return assembled.eval()


class GroupSubmodel(nn.Module):
    """What a device trains: the trunk and some groups; gives all their logits, "other" included, side by side."""

    def __init__(self, whole: GroupedNetwork, groups: Sequence[int]) -> None:
        super().__init__()
        self.group_indices = tuple(groups)
        self.own_classes = tuple(whole.spec.groups[number] for number in groups)
        self.frozen = whole.frozen
        self.trunk = copy.deepcopy(whole.trunk)
        self.groups = nn.ModuleDict({str(number): copy.deepcopy(whole.group_branch(number)) for number in groups})
        self.train()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.forward_features(self.trunk(inputs))

    def forward_features(self, features: Tensor) -> Tensor:
        """The same from the trunk's features on."""
        return torch.cat([group(features, raw=True) for group in self.groups.values()], dim=1)

    def own_logits(self, inputs: Tensor) -> Tensor:
        """The logits of its own classes as the assembled network will have them, group after group."""
        features = self.trunk(inputs)
        return torch.cat([group(features) for group in self.groups.values()], dim=1)

    def train(self, mode: bool = True) -> Self:
        """A frozen trunk always runs as in evaluation: its norms must not drift."""
        super().train(mode)
        if self.frozen:
            self.trunk.eval()
        return self


def check_group_indices(groups: Collection[int], count: int) -> tuple[int, ...]:
    """Group numbers in order; ModelError if one does not exist or there is none."""
    strange = [group for group in groups if not 0 <= group < count]
    if strange or not groups:
        what = f"there is no group {strange[0]}" if strange else "no group was asked for"
        raise ModelError(f"{what}; groups are counted from 0 to {count - 1}")
    return tuple(sorted(set(groups)))


def _build_sequential(stages: Sequence[LayerSpec]) -> nn.Sequential:
    return nn.Sequential(OrderedDict((stage.name, stage.build_layer()) for stage in stages))
