"""Splits in which some samples are held by several devices: all of them by everyone, or the rest beside one's own."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta

from potluck.data.samples import Indices
from potluck.data.splits import Labels, Owners, Split
from potluck.errors import DataError
from potluck.planning.groups import check_groups, dealt, even_groups

__all__ = ["Everything", "OwnGroups"]


class Everything(Split, frozen=True, kw_only=True, tag="everything"):
    """Everyone holds all samples."""

    def deal(self, labels: Labels, devices: int, rng: np.random.Generator, owner: Owners) -> list[Indices]:
        return [np.arange(len(labels)) for _ in range(devices)]


class OwnGroups(Split, frozen=True, kw_only=True, tag="class-groups"):
    """The samples of a device's own classes, and for each of them `rest` of all other classes, which others have too.

    Groups are dealt round in turn; several devices with one group share its samples evenly.
    """

    groups: Annotated[int, Meta(ge=1)] | tuple[tuple[int, ...], ...] = 2
    rest: Annotated[float, Meta(ge=0)] = 1.0

    def deal(self, labels: Labels, devices: int, rng: np.random.Generator, owner: Owners) -> list[Indices]:
        classes = int(labels.max()) + 1
        given = self.groups
        groups = even_groups(classes, given) if isinstance(given, int) else check_groups(given, classes)
        held = dealt(devices, len(groups))
        members = [rng.permutation(np.flatnonzero(np.isin(labels, own))) for own in groups]
        mine: list[list[Indices]] = [[] for _ in range(devices)]
        for group, samples in enumerate(members):
            having = [device for device in range(devices) if group in held[device]]
            for device, piece in zip(having, np.array_split(samples, len(having)), strict=True):
                mine[device].append(piece)
        own = [[label for group in numbers for label in groups[group]] for numbers in held]
        return [self._with_rest(np.concatenate(part), labels, own[device], rng) for device, part in enumerate(mine)]

    def _with_rest(self, own: Indices, labels: Labels, classes: list[int], rng: np.random.Generator) -> Indices:
        if not len(own):
            raise DataError(f"there is no sample of the classes {classes}; choose other groups")
        others = np.flatnonzero(~np.isin(labels, classes))
        return np.concatenate([own, rng.permutation(others)[: round(self.rest * len(own))]])
