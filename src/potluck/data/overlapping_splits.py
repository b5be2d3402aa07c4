"""Splits in which several devices hold the same samples: all of them, or some of other devices' classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta, field
from msgspec.structs import replace

from potluck.data.data_splits import Labels, Owners, Split
from potluck.data.samples import Indices
from potluck.errors import DataError, SettingError
from potluck.planning.groups import Groups, assign_groups, assign_round_robin, check_groups, even_groups
from potluck.settings import doc

__all__ = ["ClassGroupSplit", "ReplicatedSplit"]

_GROUPS = 2  # default number of groups


class ReplicatedSplit(Split, frozen=True, kw_only=True, tag="everything"):
    """Gives every device all samples."""

    def split_samples(self, labels: Labels, devices: int, rng: np.random.Generator, owner: Owners) -> list[Indices]:
        return [np.arange(len(labels)) for _ in range(devices)]


class ClassGroupSplit(Split, frozen=True, kw_only=True, tag="class-groups"):
    """Gives each device the samples of its own class groups, plus samples of other classes."""

    groups: Annotated[
        Annotated[int, Meta(ge=1)] | tuple[tuple[int, ...], ...] | None,
        doc("Number of class groups, or their classes; by default those of `rounds.submodel`, else 2."),
    ] = None
    rest: Annotated[float, Meta(ge=0), doc("Samples of other classes for each sample of an own class.")] = 1.0
    held: Annotated[
        dict[str, tuple[int, ...]], doc("Groups of each device by name; the others are assigned round-robin.")
    ] = field(default_factory=dict)

    def for_devices(self, devices: Sequence[str]) -> ClassGroupSplit:
        """Return this split with groups assigned to the named devices."""
        count = len(self.groups) if isinstance(self.groups, tuple) else self.groups or _GROUPS
        return replace(self, held=assign_groups(devices, count, self.held, "split.held"))

    def for_trained_groups(self, groups: Groups, held: Mapping[str, tuple[int, ...]]) -> ClassGroupSplit:
        """Return this split for devices that train `groups`; SettingError if it asks for other groups or holders."""
        if self.held:
            raise SettingError("split.held", "the split follows `rounds.submodel.held`; leave this key out")
        if self.groups not in (None, len(groups), groups):
            raise SettingError("split.groups", f"devices train {len(groups)} groups, not these; leave this key out")
        return replace(self, groups=groups, held=dict(held))

    def split_samples(self, labels: Labels, devices: int, rng: np.random.Generator, owner: Owners) -> list[Indices]:
        groups = self._class_groups(int(labels.max()) + 1)
        held = list(self.held.values()) or assign_round_robin(devices, len(groups))
        if len(held) != devices:
            raise DataError(f"groups are held by {len(held)} devices, but there are {devices}")
        members = [rng.permutation(np.flatnonzero(np.isin(labels, own))) for own in groups]
        mine: list[list[Indices]] = [[] for _ in range(devices)]
        for group, samples in enumerate(members):
            having = [device for device in range(devices) if group in held[device]]
            pieces = np.array_split(samples, len(having)) if having else []  # a group that no device holds
            for device, piece in zip(having, pieces, strict=True):
                mine[device].append(piece)
        own = [[label for group in numbers for label in groups[group]] for numbers in held]
        return [
            self._add_other_classes(np.concatenate(part), labels, own[device], rng) for device, part in enumerate(mine)
        ]

    def _class_groups(self, classes: int) -> Groups:
        if not isinstance(self.groups, tuple):
            return even_groups(classes, self.groups or _GROUPS)
        known = max((label + 1 for own in self.groups for label in own), default=0)  # a class may have no sample
        return check_groups(self.groups, max(classes, known), "split.groups")

    def _add_other_classes(self, own: Indices, labels: Labels, classes: list[int], rng: np.random.Generator) -> Indices:
        if not len(own):
            raise DataError(f"there is no sample of the classes {classes}; choose other groups")
        others = np.flatnonzero(~np.isin(labels, classes))
        return np.concatenate([own, rng.permutation(others)[: round(self.rest * len(own))]])
