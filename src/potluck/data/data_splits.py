"""Who holds which samples: each way of splitting deals out all samples, none twice, and leaves no device without.

A kind deals with what makes it different in `deal`; `assign` checks what goes in and what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from msgspec import Meta, field
from msgspec.structs import replace

from potluck.data.samples import Indices
from potluck.errors import DataError, SettingError
from potluck.planning.groups import Groups, assign_groups, assign_round_robin, check_groups, even_groups
from potluck.settings import Part, doc

__all__ = [
    "ClassGroupSplit",
    "ClassSplit",
    "DirichletSplit",
    "IidSplit",
    "OwnerSplit",
    "PowerLawSplit",
    "ReplicatedSplit",
    "ShardSplit",
    "Split",
    "split_holdout",
]


Labels = npt.NDArray[np.generic]
Owners = npt.NDArray[np.generic] | None
Positive = Annotated[int, Meta(ge=1)]

_GROUPS = 2  # default number of groups


class Split(Part, frozen=True, kw_only=True):
    """Distributes the training samples over the devices."""

    needs_labels: ClassVar[bool] = True
    """Whether it goes by the samples' class labels."""

    def for_devices(self, devices: Sequence[str]) -> Split:
        """The same for a fleet whose devices have these names."""
        return self

    def for_trained_groups(self, groups: Groups, held: Mapping[str, tuple[int, ...]]) -> Split:
        """The same for devices that train these class groups."""
        return self

    def assign_samples(
        self, labels: Labels, devices: int, rng: np.random.Generator, owner: Owners = None
    ) -> list[Indices]:
        """Sorted sample indices for each device; the same generator state gives the same assignment."""
        if devices < 1:
            raise DataError(f"a split needs at least one device, got {devices}")
        if len(labels) < devices:
            raise DataError(f"{len(labels)} samples cannot be split over {devices} devices; each needs at least one")
        held = [np.sort(part).astype(np.int64) for part in self.split_samples(labels, devices, rng, owner)]
        for device, part in enumerate(held):
            if not len(part):
                raise DataError(f"device {device} of {devices} is left without samples; use fewer devices")
        return held

    def split_samples(self, labels: Labels, devices: int, rng: np.random.Generator, owner: Owners) -> list[Indices]:
        raise NotImplementedError


class IidSplit(Split, frozen=True, kw_only=True, tag="iid"):
    """Shuffles the samples and divides them evenly."""

    needs_labels: ClassVar[bool] = False

    def split_samples(self, labels: Labels, devices: int, rng: np.random.Generator, owner: Owners) -> list[Indices]:
        return np.array_split(rng.permutation(len(labels)), devices)


class DirichletSplit(Split, frozen=True, kw_only=True, tag="dirichlet"):
    """Divides each class by proportions drawn from a Dirichlet distribution."""

    alpha: Annotated[
        float,
        Meta(ge=1e-3),
        doc("Concentration of the Dirichlet distribution; the smaller, the more skewed the classes."),
    ] = 0.5
    min_samples: Annotated[
        Positive, doc("Fewest samples per device; devices below take some from those with most.")
    ] = 1

    def split_samples(self, labels: Labels, devices: int, rng: np.random.Generator, owner: Owners) -> list[Indices]:
        if len(labels) < devices * self.min_samples:
            raise DataError(f"{len(labels)} samples are too few for {devices} devices with {self.min_samples} each")
        held: list[list[Indices]] = [[] for _ in range(devices)]
        for members in _indices_by_class(labels, rng):
            shares = rng.dirichlet(np.full(devices, self.alpha))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
            for part, chunk in zip(held, np.split(members, cuts), strict=True):
                part.append(chunk)
        return _ensure_min_samples([rng.permutation(np.concatenate(part)) for part in held], self.min_samples)


class ShardSplit(Split, frozen=True, kw_only=True, tag="shards"):
    """Sorts the samples by label and assigns each device a few shards of equal size (McMahan et al. 2017)."""

    per_device: Annotated[Positive, doc("Shards per device.")] = 2

    def split_samples(self, labels: Labels, devices: int, rng: np.random.Generator, owner: Owners) -> list[Indices]:
        count = devices * self.per_device
        if len(labels) < count:
            raise DataError(f"{len(labels)} samples cannot be cut into {count} shards; use fewer per device")
        shards = np.array_split(np.concatenate(_indices_by_class(labels, rng)), count)
        assigned = rng.permutation(count).reshape(devices, self.per_device)
        return [np.concatenate([shards[number] for number in numbers]) for numbers in assigned]


class ClassSplit(Split, frozen=True, kw_only=True, tag="classes"):
    """Gives each device a few classes; devices with the same class divide its samples evenly."""

    per_device: Annotated[Positive, doc("Classes per device.")] = 2

    def split_samples(self, labels: Labels, devices: int, rng: np.random.Generator, owner: Owners) -> list[Indices]:
        members = _indices_by_class(labels, rng)
        self._check_counts(len(members), devices)
        holders = self._class_holders(len(members), devices, rng)
        held: list[list[Indices]] = [[] for _ in range(devices)]
        sizes = np.zeros(devices, np.int64)
        # Small classes first, and the poorer of its holders first: where samples are scarce nobody goes empty.
        for number in sorted(range(len(members)), key=lambda number: len(members[number])):
            poorest = sorted(holders[number], key=lambda device: int(sizes[device]))
            for device, chunk in zip(poorest, np.array_split(members[number], len(poorest)), strict=True):
                held[device].append(chunk)
                sizes[device] += len(chunk)
        return [np.concatenate(part) for part in held]

    def _check_counts(self, classes: int, devices: int) -> None:
        if self.per_device > classes:
            raise DataError(f"{self.per_device} classes per device were asked for, but there are only {classes}")
        if self.per_device * devices < classes:
            needed = -(-classes // devices)
            raise DataError(
                f"{devices} devices with {self.per_device} classes each cannot hold all {classes} classes;"
                f" give each at least {needed}"
            )

    def _class_holders(self, classes: int, devices: int, rng: np.random.Generator) -> list[list[int]]:
        """The devices that hold each class: every device takes those that are held least so far, ties by lot."""
        holders: list[list[int]] = [[] for _ in range(classes)]
        for device in rng.permutation(devices):
            lot = rng.permutation(classes)
            for number in sorted(lot, key=lambda number: len(holders[number]))[: self.per_device]:
                holders[number].append(int(device))
        return holders


class OwnerSplit(Split, frozen=True, kw_only=True, tag="owner"):
    """Assigns whole owners (writers, speakers) to devices, for data sets that name them."""

    needs_labels: ClassVar[bool] = False

    def split_samples(self, labels: Labels, devices: int, rng: np.random.Generator, owner: Owners) -> list[Indices]:
        if owner is None or len(owner) != len(labels):
            raise DataError("this data does not say whose each sample is; split it in another way, such as dirichlet")
        owners, numbers = np.unique(owner, return_inverse=True)
        if len(owners) < devices:
            raise DataError(f"{len(owners)} owners cannot be split over {devices} devices; use at most {len(owners)}")
        device_of = np.empty(len(owners), np.int64)
        device_of[rng.permutation(len(owners))] = np.arange(len(owners)) % devices
        holder = device_of[numbers]
        return [np.flatnonzero(holder == device) for device in range(devices)]


class PowerLawSplit(Split, frozen=True, kw_only=True, tag="power-law"):
    """Same classes for all, different amounts: the r-th largest shard is proportional to r^−exponent."""

    needs_labels: ClassVar[bool] = False

    exponent: Annotated[float, Meta(ge=0, le=20), doc("Exponent of the power law; 0 gives equal amounts.")] = 1.5

    def split_samples(self, labels: Labels, devices: int, rng: np.random.Generator, owner: Owners) -> list[Indices]:
        weights = rng.permutation(np.arange(1, devices + 1) ** -self.exponent)
        cuts = np.rint(np.cumsum(weights / weights.sum())[:-1] * len(labels)).astype(np.int64)
        return _ensure_min_samples(np.split(rng.permutation(len(labels)), cuts), 1)


def _indices_by_class(labels: Labels, rng: np.random.Generator) -> list[Indices]:
    """The shuffled sample indices of each class that occurs."""
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise DataError(f"this split needs integer labels, not {labels.dtype} of shape {labels.shape}; use iid")
    return [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]


def _ensure_min_samples(held: list[Indices], least: int) -> list[Indices]:
    """Devices with fewer than `least` samples take them from the device with the most, one device after another."""
    for device in range(len(held)):
        while len(held[device]) < least:
            richest = max(range(len(held)), key=lambda other: len(held[other]))
            taken = min(least - len(held[device]), max(1, (len(held[richest]) - least) // 2))
            held[device] = np.concatenate([held[device], held[richest][-taken:]])
            held[richest] = held[richest][:-taken]
    return held


class ReplicatedSplit(Split, frozen=True, kw_only=True, tag="everything"):
    """Gives every device all samples."""

    needs_labels: ClassVar[bool] = False

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
        return replace(self, held=assign_groups(devices, count, self.held, "split"))

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
            chunks = np.array_split(samples, len(having)) if having else []  # a group that no device holds
            for device, chunk in zip(having, chunks, strict=True):
                mine[device].append(chunk)
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


def split_holdout(labels: npt.NDArray[np.integer], count: int, seed: int = 0) -> tuple[Indices, Indices]:
    """Return sorted training and test indices, stratified by class; each class keeps at least one training sample."""
    # NumPy guarantees that the legacy generator's stream never changes, so all devices agree on the split.
    random = np.random.RandomState(seed)
    classes, sizes = np.unique(labels, return_counts=True)
    quotas = _proportional_quotas(sizes, count)
    test = [random.permutation(np.flatnonzero(labels == c))[:quota] for c, quota in zip(classes, quotas, strict=True)]
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[np.concatenate(test)] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def _proportional_quotas(sizes: npt.NDArray[np.integer], count: int) -> Indices:
    """Whole quotas that add up to `count` where possible, the largest remainders first."""
    exact = sizes * count / sizes.sum()
    quotas: Indices = np.minimum(np.floor(exact).astype(np.int64), sizes - 1)
    for index in np.argsort(quotas - exact, kind="stable"):
        if quotas.sum() < count and quotas[index] < sizes[index] - 1:
            quotas[index] += 1
    return quotas
