"""Harvest: each group's numbers from the devices that trained it, put together by name.

    device 0   trunk  group 0                     ┐
    device 1   trunk  group 0  group 2            ├──▶  trunk  group 0  (group 1: as it was)  group 2
    device 2   trunk           group 2            ┘

A group weighs by the samples of its own classes that stand behind it, the trunk by all of a device's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from potluck.model.decoupled.grouped_network import GroupedNetwork

__all__ = ["Contribution", "ContributionReport", "merge_contributions"]

Numbers = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Contribution:
    """What a device brings: numbers by name, and for each group it trained the samples of its classes."""

    device: str
    state: Mapping[str, Tensor]
    samples: Mapping[int, int]


@dataclass(frozen=True)
class ContributionReport:
    """Who trained what (device to own-class samples, by group), what nobody trained, and who was refused and why."""

    trained: dict[int, dict[str, int]]
    untrained: tuple[int, ...]  # in this harvest
    excluded: tuple[int, ...]  # in this harvest and all before it, so that their classes never win
    trunk_from: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        groups = ", ".join(f"{group} from {'+'.join(devices)}" for group, devices in sorted(self.trained.items()))
        words = [
            f"groups {groups}" if groups else "no group",
            f"trunk {'averaged' if self.trunk_from else 'as it was'}",
        ]
        if self.untrained:
            words.append(f"not trained: {', '.join(map(str, self.untrained))}")
        if self.excluded:
            words.append(f"excluded, nobody ever trained them: {', '.join(map(str, self.excluded))}")
        return "; ".join([*words, *(f"refused {device}: {why}" for device, why in self.refused.items())])


def merge_contributions(
    grouped: GroupedNetwork, contributions: Sequence[Contribution]
) -> tuple[Numbers, ContributionReport]:
    """The grouped network's numbers after this harvest (it is not changed itself), and an account of it."""
    state = {name: value.clone() for name, value in grouped.state_dict().items()}
    refused = {given.device: why for given in contributions if (why := _refusal_reason(given, state, grouped))}
    accepted = [given for given in contributions if given.device not in refused]
    trained: dict[int, dict[str, int]] = {}
    for group in range(len(grouped.spec.groups)):
        givers = [given for given in accepted if given.samples.get(group, 0) > 0]
        if givers:
            trained[group] = {given.device: given.samples[group] for given in givers}
            _average_tensors(
                state, _names_with_prefix(state, f"groups.{group}."), givers, list(trained[group].values())
            )
            state[f"groups.{group}.readout.trained"].fill_(1.0)
    trunk: dict[str, int] = {}
    if not grouped.frozen and accepted:
        trunk = {given.device: sum(given.samples.values()) for given in accepted}
        _average_tensors(state, _names_with_prefix(state, "trunk."), accepted, list(trunk.values()))
    everyone = range(len(grouped.spec.groups))
    return state, ContributionReport(
        trained=trained,
        untrained=tuple(group for group in everyone if group not in trained),
        excluded=tuple(group for group in everyone if not state[f"groups.{group}.readout.trained"]),
        trunk_from=trunk,
        refused=refused,
    )


def _average_tensors(
    state: Numbers, names: Sequence[str], givers: Sequence[Contribution], weights: Sequence[int]
) -> None:
    """In double precision; one giver alone comes through bit for bit."""
    total = sum(weights)
    for name in names:
        mine = state[name]
        if len(givers) == 1:
            mine.copy_(givers[0].state[name])
            continue
        terms = [given.state[name].double() * weight for given, weight in zip(givers, weights, strict=True)]
        mean = torch.stack(terms).sum(dim=0) / total
        mine.copy_(mean if mine.is_floating_point() else mean.round())


def _names_with_prefix(state: Numbers, beginning: str) -> list[str]:
    return [name for name in state if name.startswith(beginning)]


def _refusal_reason(given: Contribution, state: Numbers, grouped: GroupedNetwork) -> str | None:
    """Why a contribution cannot be taken, if so."""
    count = len(grouped.spec.groups)
    strange = [group for group in given.samples if not 0 <= group < count]
    if strange:
        return f"there is no group {strange[0]}"
    if min(given.samples.values(), default=0) < 0 or not any(given.samples.values()):
        return "it has trained on no sample of its groups"
    for name in grouped.trained_names([group for group, samples in given.samples.items() if samples]):
        if name not in given.state:
            return f"{name!r} is missing"
        if given.state[name].shape != state[name].shape:
            return f"{name!r} has the shape {tuple(given.state[name].shape)}, not {tuple(state[name].shape)}"
        if not given.state[name].isfinite().all():
            return f"{name!r} has values that are not finite"
    return None
