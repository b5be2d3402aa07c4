"""Forms groups of classes (given, in order, or by similarity) and assigns groups to devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from potluck import seeds
from potluck.errors import SettingError
from potluck.planning.groups.even_assignment import assign_evenly, even_sizes

__all__ = ["Groups", "assign_groups", "assign_round_robin", "check_groups", "even_groups", "similar_groups"]

Groups = tuple[tuple[int, ...], ...]
HeldGroups = tuple[int, ...]  # the groups that one device trains
FloatArray = npt.NDArray[np.float64]

_STARTS = 8  # k-means restarts; the result with the least variance within groups wins
_PASSES = 50


def even_groups(classes: int, count: int) -> Groups:
    """Groups of consecutive classes, as equal in size as possible."""
    _check_count(classes, count)
    bounds = np.cumsum((0, *even_sizes(classes, count)))
    return tuple(tuple(range(first, last)) for first, last in pairwise(bounds))


def similar_groups(features: FloatArray, count: int, seed: int = 0) -> Groups:
    """Equal-sized groups of classes whose mean features (one row per class) are close."""
    _check_count(len(features), count)
    features = np.asarray(features, np.float64).reshape(len(features), -1)
    clusterings = [
        _cluster_evenly(features, count, seeds.child_generator(seed, "groups", start)) for start in range(_STARTS)
    ]
    owners = min(clusterings, key=lambda owners: _within_group_variance(features, owners, count))
    return tuple(sorted(tuple(int(label) for label in np.flatnonzero(owners == group)) for group in range(count)))


def check_groups(groups: Sequence[Sequence[int]], classes: int, path: str = "groups") -> Groups:
    """The groups as tuples; SettingError unless every class is in exactly one group."""
    checked = tuple(tuple(int(label) for label in group) for group in groups)
    for number, group in enumerate(checked):
        if not group:
            raise SettingError(f"{path}[{number}]", "is empty; give each group at least one class")
    labels = [label for group in checked for label in group]
    for label in labels:
        if not 0 <= label < classes:
            raise SettingError(path, f"class {label} is not among the {classes} classes, counted from 0")
        if labels.count(label) > 1:
            raise SettingError(path, f"class {label} is in more than one group; put it in one")
    missing = sorted(set(range(classes)) - set(labels))
    if missing:
        raise SettingError(path, f"class {missing[0]} is in no group; put every class in one")
    return checked


def assign_round_robin(devices: int, groups: int) -> list[HeldGroups]:
    """One group per device if there are at least as many devices as groups, else several per device."""
    if devices >= groups:
        return [(device % groups,) for device in range(devices)]
    return [tuple(range(device, groups, devices)) for device in range(devices)]


def assign_overlapping(devices: int, groups: int, each: int) -> list[HeldGroups]:
    """`each` adjacent groups per device, from starts that are spread evenly."""
    starts = [device if devices > groups else device * groups // devices for device in range(devices)]
    return [tuple(sorted({(start + offset) % groups for offset in range(each)})) for start in starts]


def assign_groups(
    devices: Sequence[str],
    groups: int,
    configured: Mapping[str, Sequence[int]],
    path: str,
    each: int | None = None,
) -> dict[str, HeldGroups]:
    """The groups of each device: as configured in `held`, else `each` adjacent ones, else assigned round-robin.

    A SettingError names an invalid entry of the table at `path`.
    """
    for name, wanted in configured.items():
        where = f"{path}.held.{name}"
        if name not in devices:
            raise SettingError(where, f"the fleet has no device {name!r}")
        if not wanted:
            raise SettingError(where, "give the device at least one group")
        unknown = [group for group in wanted if not 0 <= group < groups]
        if unknown:
            raise SettingError(where, f"there is no group {unknown[0]}; choose from 0 to {groups - 1}")
    others = [name for name in devices if name not in configured]
    if each is not None:
        _check_each(each, len(others), groups, path, complete=bool(configured))
    held = assign_round_robin(len(others), groups) if each is None else assign_overlapping(len(others), groups, each)
    assigned = dict(zip(others, held, strict=True))
    return {name: tuple(sorted(set(configured[name]))) if name in configured else assigned[name] for name in devices}


def _check_each(each: int, devices: int, groups: int, path: str, *, complete: bool) -> None:
    if each > groups:
        raise SettingError(f"{path}.each", f"there are {groups} groups; choose from 1 to {groups}")
    if not complete and each * devices < groups:
        raise SettingError(
            f"{path}.each", f"{each} on each of {devices} devices leave some of {groups} groups untrained; use more"
        )


def _check_count(classes: int, count: int) -> None:
    if not 1 <= count <= classes:
        raise SettingError("groups", f"{classes} classes cannot form {count} groups; choose from 1 to {classes}")


def _cluster_evenly(features: FloatArray, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    sizes = even_sizes(len(features), count)
    centres = features[_initial_centres(features, count, rng)]
    owners = np.full(len(features), -1)
    for _ in range(_PASSES):
        before, owners = owners, assign_evenly(-_squared_distances(features, centres), sizes)
        if np.array_equal(before, owners):
            break
        centres = np.stack([features[owners == group].mean(axis=0) for group in range(count)])
    return owners


def _initial_centres(features: FloatArray, count: int, rng: np.random.Generator) -> list[int]:
    """k-means++: a random first centre, each next one drawn in proportion to its squared distance from the others."""
    chosen = [int(rng.integers(len(features)))]
    while len(chosen) < count:
        nearest = _squared_distances(features, features[chosen]).min(axis=1)
        nearest[chosen] = 0.0
        left = [label for label in range(len(features)) if label not in chosen]
        weights = nearest[left] / nearest[left].sum() if nearest[left].sum() > 0 else None
        chosen.append(int(rng.choice(left, p=weights)))
    return chosen


def _squared_distances(features: FloatArray, centres: FloatArray) -> FloatArray:
    squared: FloatArray = ((features[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
    return squared


def _within_group_variance(features: FloatArray, owners: npt.NDArray[np.int64], count: int) -> float:
    members = [features[owners == group] for group in range(count)]
    return float(sum(((group - group.mean(axis=0)) ** 2).sum() for group in members))
