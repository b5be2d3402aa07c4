"""What a job's samples mean for class groups: which groups a device can train, on how much, and how classes look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potluck.errors import SettingError
from potluck.model.decoupled.feature_cache import feature_bytes
from potluck.model.decoupled.group_loss import expected_class_counts
from potluck.model.decoupled.grouped_network import GroupedNetwork
from potluck.model.submodel_context import Indices, LabelledSamples, SubmodelContext
from potluck.planning.groups import full_model_cost, group_costs
from potluck.units import Bytes

__all__ = [
    "FeatureMap",
    "Negatives",
    "affordable_samples",
    "check_cache",
    "class_counts",
    "class_means",
    "refuse_iterable",
    "spread_batches",
    "step_macs",
    "trainable_groups",
]

PATH = "rounds.submodel"
_LOOKED_AT = 4096  # samples used to find similar classes and to attribute channels
_BATCH = 256

Negatives = Literal["own", "generated"]  # the device's samples of other classes, or ones generated from its own
FeatureMap = Callable[[Tensor], Tensor]


def trainable_groups(
    grouped: GroupedNetwork, device: str, wanted: tuple[int, ...], present: set[int], negatives: Negatives
) -> tuple[int, ...]:
    """The groups that a device can train with samples of these classes; a SettingError if there is none."""
    groups, all_classes = grouped.spec.groups, grouped.spec.class_count
    trainable = []
    for group in wanted:
        own = groups[group]
        has_others = negatives == "generated" or len(own) == all_classes or not present <= set(own)
        if has_others and not present.isdisjoint(own):
            trainable.append(group)
    if not trainable:
        own_classes = {label for group in wanted for label in groups[group]}
        raise SettingError(f"{PATH}.held.{device}", _untrainable_reason(device, own_classes, present))
    return tuple(trainable)


def class_counts(
    grouped: GroupedNetwork, groups: tuple[int, ...], labels: Indices, negatives: Negatives, streaming: bool
) -> dict[int, int]:
    """How many samples of each class a device trains on in an epoch; generated ones form a class of their own.

    A stream brings its samples as they come, so nothing balances them.
    """
    if streaming:
        return dict(zip(*(each.tolist() for each in np.unique(labels, return_counts=True)), strict=True))
    own = [label for group in groups for label in grouped.spec.groups[group]]
    counts = expected_class_counts(labels, own)
    if negatives != "generated":
        return counts
    own_counts = {label: counts[label] for label in own if label in counts}
    return {**own_counts, grouped.spec.class_count: sum(own_counts.values())}


def step_macs(grouped: GroupedNetwork, groups: tuple[int, ...], cached: bool, distilled: bool) -> int:
    """The MACs of one sample's training step on a device with these groups."""
    sizes = [len(classes) for classes in grouped.spec.groups]
    costs = group_costs(grouped.graph, sizes, grouped.spec.depth)
    macs = costs.of_groups(groups).training_macs(frozen=grouped.frozen, cached=cached)
    if distilled:
        assembled = costs.of_groups(range(len(sizes)))
        macs += assembled.group_macs + (0 if cached else assembled.trunk_macs)
    return macs


def affordable_samples(
    grouped: GroupedNetwork, groups: tuple[int, ...], central_samples: float, cached: bool, distilled: bool
) -> int:
    """How many samples a turn may train on for the MACs of central training on so many."""
    central_macs = central_samples * full_model_cost(grouped.graph).training_macs(frozen=False)
    return int(central_macs / step_macs(grouped, groups, cached, distilled))


def refuse_iterable(samples: LabelledSamples | None) -> None:
    """A SettingError for data whose classes are not known before it streams in."""
    if getattr(samples, "is_stream", False):
        raise SettingError(
            "stream",
            "class groups need to know which classes a device gets, and an iterable data set does not say;"
            " use one that is read by index",
        )


def check_cache(
    context: SubmodelContext, grouped: GroupedNetwork, shards: Mapping[str, Indices], most_bytes: float
) -> None:
    """A SettingError if the trunk's outputs differ from pass to pass, or a device's do not fit."""
    path = f"{PATH}.cache"
    if context.streaming:
        raise SettingError(path, "keeps what samples of a shard give, and a stream brings others; leave it out")
    if getattr(context.samples, "needs_rng", False):
        raise SettingError(
            path,
            "needs samples that are the same in every pass, and these may be transformed at random; leave it out",
        )
    largest = max(shards, key=lambda device: len(shards[device]))
    dtype = next(grouped.parameters()).dtype
    needed = len(shards[largest]) * feature_bytes(grouped.trunk, grouped.spec.shape, dtype)
    if needed > most_bytes:
        raise SettingError(
            path,
            f"the trunk's outputs of the {len(shards[largest])} samples of {largest} take {Bytes(needed)};"
            " allow that much, use a larger depth, or leave it out",
        )


def spread_batches(samples: LabelledSamples) -> list[tuple[Tensor, Tensor]]:
    """Batches of evenly spaced samples, always the same."""
    chosen = np.linspace(0, len(samples) - 1, min(len(samples), _LOOKED_AT)).astype(np.int64)
    return [samples.batch(chosen[start : start + _BATCH]) for start in range(0, len(chosen), _BATCH)]


def class_means(samples: LabelledSamples, classes: int, features_of: FeatureMap) -> npt.NDArray[np.float64]:
    """The mean of each class's samples as transformed by `features_of`."""
    batches = spread_batches(samples)
    inputs = torch.cat([features_of(given).flatten(1).double() for given, _ in batches])
    labels = torch.cat([targets for _, targets in batches])
    missing = sorted(set(range(classes)) - set(labels.tolist()))
    if missing:
        raise SettingError(
            f"{PATH}.alike", f"class {missing[0]} is too rare to compare it with others; set the groups explicitly"
        )
    sums = torch.zeros(classes, inputs.shape[1], dtype=torch.float64).index_add_(0, labels, inputs)
    means: npt.NDArray[np.float64] = (sums / torch.bincount(labels, minlength=classes)[:, None]).numpy()
    return means


def _untrainable_reason(device: str, own: set[int], present: set[int]) -> str:
    if present.isdisjoint(own):
        return f"{device} has no sample of the classes {sorted(own)}; give it other groups, or split the data otherwise"
    return (
        f"{device} has samples of its own classes {sorted(own)} only, nothing to tell them from;"
        " give it samples of others, as split = {kind = 'class-groups', rest = 1.0} does,"
        " or let it make some up: negatives = 'generated'"
    )
