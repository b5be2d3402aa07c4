"""The submodel part of a round by classes: a device trains the trunk and the groups whose classes concern it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potluck import seeds
from potluck.errors import SettingError
from potluck.model.decoupled.channel_attribution import pooled_features
from potluck.model.decoupled.decouple import Variant, decouple
from potluck.model.decoupled.group_calibration import Extent
from potluck.model.decoupled.grouped_network import GroupedNetwork
from potluck.model.decoupled.sequential_layers import trace_sequential, trunk_length
from potluck.model.layer_chain import LayerChain
from potluck.model.submodels.submodel_parts import Submodel
from potluck.planning.groups import Groups, assign_groups, check_groups, even_groups, similar_groups
from potluck.settings import doc

__all__ = ["ClassGroups", "LabelledSamples"]

PATH = "rounds.submodel"
_LOOKED_AT = 4096  # samples that tell which classes are alike, and which channels serve which
_BATCH = 256

Negatives = Literal["own", "generated"]  # samples of other classes that the device has, or made of its own ones
Count = Annotated[int, msgspec.Meta(ge=1)]
Seen = Callable[[Tensor], Tensor]
Depth = Annotated[int, msgspec.Meta(ge=0)]


class LabelledSamples(Protocol):
    """Samples that can be asked for by index, and their labels."""

    @property
    def labels(self) -> npt.NDArray[np.int64]: ...

    def __len__(self) -> int: ...

    def batch(self, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]: ...


class ClassGroups(Submodel, frozen=True, kw_only=True, tag="class-groups"):
    """Layers beyond the first `depth` are divided into groups with classes of their own (Chen and Qin 2020)."""

    groups: Annotated[
        Literal["auto"] | Count | tuple[tuple[int, ...], ...],
        doc("Number of class groups, their classes as lists, or `auto`: what the slowest device can afford."),
    ] = 2
    alike: Annotated[bool, doc("Group classes that look alike instead of neighbouring ones.")] = False
    depth: Annotated[
        Literal["auto"] | Depth,
        doc("Number of first layers that all devices share, or `auto`: what the slowest device can afford."),
    ] = 1
    held: Annotated[
        dict[str, tuple[int, ...]], doc("Groups of each device by name; the others are assigned round-robin.")
    ] = msgspec.field(default_factory=dict)
    variant: Annotated[
        Variant, doc("Divide channels evenly, or attribute a trained model's channels to the classes that they serve.")
    ] = "structural"
    trunk: Annotated[
        Literal["averaged", "frozen"],
        doc("Average the shared layers in every round, or keep them as they are at the start."),
    ] = "averaged"
    negatives: Annotated[
        Negatives, doc("Train against the device's own samples of other classes, or against generated ones.")
    ] = "own"
    calibration: Annotated[
        int, msgspec.Meta(ge=0), doc("Number of samples that make the groups' logits comparable; 0 for no calibration.")
    ] = 0
    held_out: Annotated[bool, doc("Exclude the calibration samples from training.")] = True
    extent: Annotated[Extent, doc("Calibrate three values per group, or also the groups' last layers.")] = "readout"

    def __post_init__(self) -> None:
        if self.alike and isinstance(self.groups, tuple):
            raise ValueError("`alike` finds the groups itself: give their number only")
        if self.held and self.groups == "auto":
            raise ValueError("`held` names groups by their numbers: give `groups` too")

    @property
    def is_resolved(self) -> bool:
        """Is it known how the network is cut?"""
        return self.groups != "auto" and self.depth != "auto"

    def group_counts(self) -> tuple[int, ...]:
        """The numbers of groups to choose from; empty: any."""
        if self.groups == "auto":
            return ()
        return (self.groups if isinstance(self.groups, int) else len(self.groups),)

    def resolve_cut(self, depth: int, groups: int) -> ClassGroups:
        """The same where what was left open is this."""
        return msgspec.structs.replace(self, depth=depth, groups=groups if self.groups == "auto" else self.groups)

    def build_grouped(self, chain: LayerChain, samples: LabelledSamples | None, seed: int) -> GroupedNetwork:
        """The network taken apart; without samples (only sizes matter) classes and channels go in order."""
        assert self.depth != "auto", "a cut is settled before the network is taken apart"
        groups = self._resolve_groups(trace_sequential(chain.module, chain.shape)[-1].outputs, samples, seed)
        hollow = samples is None or any(param.is_meta for param in chain.module.parameters())
        return decouple(
            chain.module,
            chain.shape,
            groups,
            self.depth,
            "structural" if hollow else self.variant,
            samples=[] if hollow or samples is None else _spread_batches(samples),
            frozen=self.trunk == "frozen",
            seed=seeds.child_seed(seed, "decouple"),
        )

    def group_by_features(self, chain: LayerChain, samples: LabelledSamples, seed: int) -> ClassGroups:
        """The same with its groups found: classes together of which a trained network's trunk makes much the same."""
        assert self.alike, "groups that are given need not be found"
        assert self.depth != "auto", "the cut says what the trunk is"
        steps = trace_sequential(chain.module, chain.shape)
        trunk = steps[: trunk_length(steps, self.depth)]
        found = self._resolve_groups(steps[-1].outputs, samples, seed, lambda inputs: pooled_features(trunk, inputs))
        return msgspec.structs.replace(self, groups=found, alike=False)

    def groups_by_device(self, devices: Sequence[str], groups: int) -> Mapping[str, tuple[int, ...]]:
        """The groups of each device of a fleet."""
        return assign_groups(devices, groups, self.held, f"{PATH}.held")

    def _resolve_groups(
        self, classes: int, samples: LabelledSamples | None, seed: int, seen: Seen = Tensor.double
    ) -> Groups:
        assert self.groups != "auto", "a cut is settled before the network is taken apart"
        if not isinstance(self.groups, int):
            return check_groups(self.groups, classes, f"{PATH}.groups")
        if self.groups > classes:
            raise SettingError(f"{PATH}.groups", f"{classes} classes cannot form {self.groups} groups; use fewer")
        if self.alike and samples is not None:
            return similar_groups(_class_means(samples, classes, seen), self.groups, seeds.child_seed(seed, "alike"))
        return even_groups(classes, self.groups)


def _spread_batches(samples: LabelledSamples) -> list[tuple[Tensor, Tensor]]:
    """Some samples from all over the data, always the same, in batches."""
    chosen = np.linspace(0, len(samples) - 1, min(len(samples), _LOOKED_AT)).astype(np.int64)
    return [samples.batch(chosen[start : start + _BATCH]) for start in range(0, len(chosen), _BATCH)]


def _class_means(samples: LabelledSamples, classes: int, seen: Seen) -> npt.NDArray[np.float64]:
    """What a class looks like on average, to whoever has `seen` its samples."""
    batches = _spread_batches(samples)
    inputs = torch.cat([seen(given).flatten(1).double() for given, _ in batches])
    labels = torch.cat([targets for _, targets in batches])
    missing = sorted(set(range(classes)) - set(labels.tolist()))
    if missing:
        raise SettingError(f"{PATH}.alike", f"class {missing[0]} is too rare to tell what it is like; give the groups")
    sums = torch.zeros(classes, inputs.shape[1], dtype=torch.float64).index_add_(0, labels, inputs)
    found: npt.NDArray[np.float64] = (sums / torch.bincount(labels, minlength=classes)[:, None]).numpy()
    return found
