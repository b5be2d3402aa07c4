"""Merges devices' sub-models into the grouped network by name, for programs without a training loop of ours.

    device 0   trunk  group 0                     ┐
    device 1   trunk  group 0  group 2            ├──▶  trunk  group 0  (group 1: unchanged)  group 2
    device 2   trunk           group 2            ┘

A group is weighted by the samples of its own classes, the trunk by all samples of its groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from potluck.model.decoupled.grouped_network import GroupedNetwork

__all__ = ["Contribution", "ContributionReport", "merge_contributions"]

StateDict = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Contribution:
    """A device's trained state by name, and for each group it trained the number of samples of its classes."""

    device: str
    state: Mapping[str, Tensor]
    samples: Mapping[int, int]


@dataclass(frozen=True)
class ContributionReport:
    """Which devices trained each group with how many samples, which groups are untrained, and who was refused why."""

    trained: dict[int, dict[str, int]]
    untrained: tuple[int, ...]  # in this merge
    excluded: tuple[int, ...]  # in this and all earlier merges, so that their classes are never predicted
    trunk_from: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        groups = ", ".join(f"{group} from {'+'.join(devices)}" for group, devices in sorted(self.trained.items()))
        lines = [
            f"groups {groups}" if groups else "no group",
            f"trunk {'averaged' if self.trunk_from else 'unchanged'}",
        ]
        if self.untrained:
            lines.append(f"not trained: {', '.join(map(str, self.untrained))}")
        if self.excluded:
            lines.append(f"excluded, never trained: {', '.join(map(str, self.excluded))}")
        return "; ".join([*lines, *(f"refused {device}: {why}" for device, why in self.refused.items())])


def merge_contributions(
    grouped: GroupedNetwork, contributions: Sequence[Contribution]
) -> tuple[StateDict, ContributionReport]:
    """The merged state of the grouped network, which is itself not changed, and a report."""
    state = {name: value.clone() for name, value in grouped.state_dict().items()}
    reasons = {contribution.device: _refusal_reason(contribution, state, grouped) for contribution in contributions}
    refused = {device: reason for device, reason in reasons.items() if reason}
    accepted = [contribution for contribution in contributions if contribution.device not in refused]
    trained: dict[int, dict[str, int]] = {}
    for group in range(len(grouped.spec.groups)):
        trainers = [contribution for contribution in accepted if contribution.samples.get(group, 0) > 0]
        if trainers:
            trained[group] = {contribution.device: contribution.samples[group] for contribution in trainers}
            _average_tensors(
                state, _names_with_prefix(state, f"groups.{group}."), trainers, list(trained[group].values())
            )
            state[f"groups.{group}.readout.trained"].fill_(1.0)
    trunk: dict[str, int] = {}
    if not grouped.frozen and accepted:
        trunk = {contribution.device: sum(contribution.samples.values()) for contribution in accepted}
        _average_tensors(state, _names_with_prefix(state, "trunk."), accepted, list(trunk.values()))
    all_groups = range(len(grouped.spec.groups))
    return state, ContributionReport(
        trained=trained,
        untrained=tuple(group for group in all_groups if group not in trained),
        excluded=tuple(group for group in all_groups if not state[f"groups.{group}.readout.trained"]),
        trunk_from=trunk,
        refused=refused,
    )


def _average_tensors(
    state: StateDict, names: Sequence[str], trainers: Sequence[Contribution], weights: Sequence[int]
) -> None:
    """Set tensors to their weighted mean, in double precision; a single contribution is copied bit for bit."""
    total = sum(weights)
    for name in names:
        target = state[name]
        if len(trainers) == 1:
            target.copy_(trainers[0].state[name])
            continue
        terms = [
            contribution.state[name].double() * weight for contribution, weight in zip(trainers, weights, strict=True)
        ]
        mean = torch.stack(terms).sum(dim=0) / total
        target.copy_(mean if target.is_floating_point() else mean.round())


def _names_with_prefix(state: StateDict, prefix: str) -> list[str]:
    return [name for name in state if name.startswith(prefix)]


def _refusal_reason(contribution: Contribution, state: StateDict, grouped: GroupedNetwork) -> str | None:
    """Why a contribution cannot be merged; None if it can."""
    count = len(grouped.spec.groups)
    unknown = [group for group in contribution.samples if not 0 <= group < count]
    if unknown:
        return f"there is no group {unknown[0]}"
    if min(contribution.samples.values(), default=0) < 0 or not any(contribution.samples.values()):
        return "it was trained on no sample of its groups"
    for name in grouped.trained_names([group for group, samples in contribution.samples.items() if samples]):
        if name not in contribution.state:
            return f"{name!r} is missing"
        if contribution.state[name].shape != state[name].shape:
            return f"{name!r} has shape {tuple(contribution.state[name].shape)}, not {tuple(state[name].shape)}"
        if not contribution.state[name].isfinite().all():
            return f"{name!r} contains NaN or infinity"
    return None
