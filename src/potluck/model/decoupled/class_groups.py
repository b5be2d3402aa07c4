"""The submodel part by class groups: a device trains the trunk and the groups of the classes it is responsible for."""

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

__all__ = ["ClassGroups", "LabelledSamples"]

PATH = "rounds.submodel"
_LOOKED_AT = 4096  # samples used to find similar classes and to attribute channels
_BATCH = 256

Negatives = Literal["own", "generated"]  # the device's samples of other classes, or ones generated from its own
Count = Annotated[int, msgspec.Meta(ge=1)]
Seen = Callable[[Tensor], Tensor]
Depth = Annotated[int, msgspec.Meta(ge=0)]


class LabelledSamples(Protocol):
    """Samples that are read by index, and their labels."""

    @property
    def labels(self) -> npt.NDArray[np.int64]: ...

    def __len__(self) -> int: ...

    def batch(self, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]: ...


class ClassGroups(Submodel, frozen=True, kw_only=True, tag="class-groups"):
    """Chen and Qin 2020: layers beyond the first `depth` are split into groups, each with its own classes."""

    groups: Literal["auto"] | Count | tuple[tuple[int, ...], ...] = 2  # how many, in class order; or their classes
    alike: bool = False  # group similar classes (as the trunk sees them, if the job has a `start`)
    depth: Literal["auto"] | Depth = 1  # layers that all devices share; "auto": what the slowest one can afford
    held: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)  # by device; others: round-robin
    variant: Variant = "structural"
    trunk: Literal["averaged", "frozen"] = "averaged"
    negatives: Negatives = "own"  # what a group learns to distinguish its classes from
    calibration: Annotated[int, msgspec.Meta(ge=0)] = 0  # samples used to make the groups' logits comparable
    held_out: bool = True  # no device trains on these samples
    extent: Extent = "readout"  # what they fit: three values per group, or also its last layer ("heads")

    def __post_init__(self) -> None:
        if self.alike and isinstance(self.groups, tuple):
            raise ValueError("`alike` forms the groups itself; set `groups` to their number")
        if self.held and self.groups == "auto":
            raise ValueError("`held` refers to groups by index; set `groups` too")

    @property
    def is_resolved(self) -> bool:
        """Whether the cut of the network is decided."""
        return self.groups != "auto" and self.depth != "auto"

    def group_counts(self) -> tuple[int, ...]:
        """The numbers of groups to choose from; empty for any."""
        if self.groups == "auto":
            return ()
        return (self.groups if isinstance(self.groups, int) else len(self.groups),)

    def resolve_cut(self, depth: int, groups: int) -> ClassGroups:
        """The same settings with this cut in place of "auto"."""
        return msgspec.structs.replace(self, depth=depth, groups=groups if self.groups == "auto" else self.groups)

    def build_grouped(self, chain: LayerChain, samples: LabelledSamples | None, seed: int) -> GroupedNetwork:
        """The grouped network; without samples (only sizes matter) classes and channels are assigned in order."""
        assert self.depth != "auto", "the cut is decided before the network is split"
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
        """The same settings with groups of classes whose features in a trained network's trunk are similar."""
        assert self.alike, "the groups are given"
        assert self.depth != "auto", "the cut defines the trunk"
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
        assert self.groups != "auto", "the cut is decided before the network is split"
        if not isinstance(self.groups, int):
            return check_groups(self.groups, classes, f"{PATH}.groups")
        if self.groups > classes:
            raise SettingError(f"{PATH}.groups", f"{classes} classes cannot form {self.groups} groups; use fewer")
        if self.alike and samples is not None:
            return similar_groups(_class_means(samples, classes, seen), self.groups, seeds.child_seed(seed, "alike"))
        return even_groups(classes, self.groups)


def _spread_batches(samples: LabelledSamples) -> list[tuple[Tensor, Tensor]]:
    """Batches of evenly spaced samples, always the same."""
    chosen = np.linspace(0, len(samples) - 1, min(len(samples), _LOOKED_AT)).astype(np.int64)
    return [samples.batch(chosen[start : start + _BATCH]) for start in range(0, len(chosen), _BATCH)]


def _class_means(samples: LabelledSamples, classes: int, seen: Seen) -> npt.NDArray[np.float64]:
    """The mean of each class's samples as transformed by `seen`."""
    batches = _spread_batches(samples)
    inputs = torch.cat([seen(given).flatten(1).double() for given, _ in batches])
    labels = torch.cat([targets for _, targets in batches])
    missing = sorted(set(range(classes)) - set(labels.tolist()))
    if missing:
        raise SettingError(
            f"{PATH}.alike", f"class {missing[0]} is too rare to compare it with others; set the groups explicitly"
        )
    sums = torch.zeros(classes, inputs.shape[1], dtype=torch.float64).index_add_(0, labels, inputs)
    found: npt.NDArray[np.float64] = (sums / torch.bincount(labels, minlength=classes)[:, None]).numpy()
    return found
