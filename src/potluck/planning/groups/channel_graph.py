"""A network as channels: which of them belong together, and which group owns each channel of each tensor.

    conv a ──▶ a ──┐                     channels that are added have the same owner; so have those of one
                   + ──▶ cat ──▶ conv    run of a grouped convolution or group norm. A concatenation puts
    conv b ──▶ b ──┘      ▲              channels in a row, and flattening repeats each of them
    conv c ──▶ c ─────────┘

Beyond the trunk a layer that mixes channels outputs channels that one group each owns, and a group reads its own and
the trunk's. Where the trunk's features meet owned channels in an addition, a group takes its own ones of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from potluck.errors import ModelError
from potluck.planning.groups.even_assignment import even_sizes

__all__ = ["EVERYONE", "ChannelGraph", "ChannelStep", "OwnedStep", "OwnerChoice", "choose_in_order"]

EVERYONE = -1  # the owner of a channel that all groups have
_INPUT = -1  # the source of a step that reads the network's input

ChannelArray = npt.NDArray[np.int64]
# Owners of channel sets that have none so far: the layer's index, the sets, and how many of them each group gets.
OwnerChoice = Callable[[int, ChannelArray, Sequence[int]], ChannelArray]


@dataclass(frozen=True)
class ChannelStep:
    """One operation: how its output channels follow from its inputs, and what a pair of channels costs.

    `mix` connects every output with every input; `grouped` does so within each of `runs` runs of channels (a grouped or
    depthwise convolution); `pass` works channel by channel, or run by run; `join` adds or multiplies its inputs.
    `macs` and `weights` count per pair of an output and one of the inputs that it reads, `extras` per output channel.
    """

    name: str
    kind: Literal["mix", "grouped", "pass", "flatten", "join", "concat"]
    sources: tuple[int, ...]  # indices of earlier steps; -1 is the network's input
    channels: int  # of its output
    runs: int = 0
    positions: int = 1  # features that flattening makes of each channel
    reads: int = 1  # input channels of each output channel in a grouped convolution
    macs: int = 0
    weights: int = 0
    extras: int = 0
    dropout: bool = False

    @property
    def mixes(self) -> bool:
        """Whether it connects channels with one another."""
        return self.kind == "mix" or (self.kind == "grouped" and self.reads > 1)

    @property
    def has_weights(self) -> bool:
        return self.weights + self.extras > 0


@dataclass(frozen=True, eq=False)
class OwnedStep:
    """The owners of the channels that a step reads of each source, and of those that it outputs."""

    index: int
    inputs: tuple[ChannelArray, ...]
    outputs: ChannelArray


def choose_in_order(index: int, sets: ChannelArray, sizes: Sequence[int]) -> ChannelArray:
    """The first sets go to the first group, and so on."""
    return np.repeat(np.arange(len(sizes)), sizes)


@dataclass(frozen=True)
class ChannelGraph:
    """The steps of a network in execution order, from `inputs` channels to the logits of the last step."""

    steps: tuple[ChannelStep, ...]
    inputs: int

    @cached_property
    def channel_sets(self) -> tuple[ChannelArray, ...]:
        """For each step the set of each output channel: channels of one set have the same owner."""
        return _trace_sets(self.steps, self.inputs)

    @cached_property
    def mixing(self) -> tuple[int, ...]:
        """The indices of the steps that mix channels; a trunk's depth counts these."""
        return tuple(index for index, step in enumerate(self.steps) if step.mixes)

    @cached_property
    def trunk_ends(self) -> dict[int, int]:
        """The number of steps of a trunk for each possible depth: where one tensor alone goes on to the groups."""
        ends = {0: 0}
        for depth, (before, after) in enumerate(zip(self.mixing, self.mixing[1:], strict=False), start=1):
            single = [end for end in range(before + 1, after + 1) if len(self.live_tensors(end)) == 1]
            if single:
                end = single[-1]
                while self.steps[end - 1].dropout and end - 1 in single:
                    end -= 1
                ends[depth] = end
        return ends

    def live_tensors(self, end: int) -> set[int]:
        """The tensors that are computed before step `end` and read from it on."""
        return {source for step in self.steps[end:] for source in step.sources if source < end}

    def trunk_end(self, depth: int) -> int:
        """Number of steps in a trunk of `depth`; ModelError if there is no such cut."""
        if not 0 <= depth < len(self.mixing):
            raise ModelError(f"depth {depth} leaves no layer for the groups; choose from 0 to {len(self.mixing) - 1}")
        if depth not in self.trunk_ends:
            within, allowed = self.steps[self.mixing[depth]].name, ", ".join(map(str, sorted(self.trunk_ends)))
            raise ModelError(f"depth {depth} would cut a block with several branches before {within!r}; use {allowed}")
        return self.trunk_ends[depth]

    def max_groups(self, depth: int) -> int:
        """The largest number of groups that every layer beyond the trunk has channels for."""
        end = self.trunk_end(depth)
        divided = [index for index in self.mixing[:-1] if index >= end]
        return min(
            (len(np.unique(self.channel_sets[index])) for index in divided),
            default=self.steps[self.mixing[-1]].channels,
        )

    def own_channels(
        self, end: int, class_owners: ChannelArray, choose: OwnerChoice = choose_in_order
    ) -> list[OwnedStep]:
        """The owners of all channels beyond a trunk of `end` steps; `class_owners` are those of the logits."""
        groups = int(class_owners.max()) + 1
        owner_of = np.full(1 + max(int(sets.max()) for sets in self.channel_sets), EVERYONE)
        owners: dict[int, ChannelArray] = {
            source: np.full(self.steps[source].channels if source >= 0 else self.inputs, EVERYONE)
            for source in self.live_tensors(end)
        }
        owned = []
        for index, step in enumerate(self.steps[end:], start=end):
            given = [owners[source] for source in step.sources]
            divides = step.mixes and (step.kind == "mix" or bool((given[0] == EVERYONE).all()))
            if index == len(self.steps) - 1:
                inputs, outputs = given, class_owners
            elif divides:
                self._assign_sets(index, owner_of, groups, choose)
                outputs = owner_of[self.channel_sets[index]]
                inputs = given if step.kind == "mix" else [_per_run(outputs, step, len(given[0]))]
            else:
                inputs, outputs = _pass_owners(step, given)
            owners[index] = outputs
            owned.append(OwnedStep(index, tuple(inputs), outputs))
        return owned

    def _assign_sets(self, index: int, owner_of: ChannelArray, groups: int, choose: OwnerChoice) -> None:
        """Give an owner to each set of a layer that has none so far."""
        _, first = np.unique(self.channel_sets[index], return_index=True)
        sets = self.channel_sets[index][np.sort(first)]
        if len(sets) < groups:
            step = self.steps[index]
            what = f"{step.channels} channels" + (f" in {len(sets)} inseparable runs" * (len(sets) < step.channels))
            raise ModelError(f"layer {step.name!r} has {what}, too few for {groups} groups; use fewer")
        free = sets[owner_of[sets] == EVERYONE]
        owner_of[free] = choose(index, free, even_sizes(len(free), groups))


def _pass_owners(step: ChannelStep, given: Sequence[ChannelArray]) -> tuple[list[ChannelArray], ChannelArray]:
    """The owners that a step without new channels reads and outputs."""
    if step.kind == "concat":
        return list(given), np.concatenate(given)
    if step.kind == "flatten":
        return list(given), np.repeat(given[0], step.positions)
    met = np.max(given, axis=0)  # EVERYONE is less than any group, and owners that meet are equal
    if step.runs:
        met = _per_run(met, step, len(met))
    return [met for _ in given], _per_run(met, step, step.channels) if step.kind == "grouped" else met


def _per_run(owners: ChannelArray, step: ChannelStep, channels: int) -> ChannelArray:
    """The owner of each of so many channels, given those of channels in as many runs."""
    return np.repeat(owners.reshape(step.runs, -1).max(axis=1), channels // step.runs)


def _trace_sets(steps: Sequence[ChannelStep], inputs: int) -> tuple[ChannelArray, ...]:
    sets = _ChannelSets()
    tensors = {_INPUT: sets.add_sets(inputs)}
    for index, step in enumerate(steps):
        first, *others = [tensors[source] for source in step.sources]
        output = first
        if step.runs:
            for run in first.reshape(step.runs, -1):
                sets.unite(run, np.full_like(run, run[0]))
        if step.kind == "mix":
            output = sets.add_sets(step.channels)
        elif step.kind == "grouped":
            output = np.repeat(first.reshape(step.runs, -1)[:, 0], step.channels // step.runs)
        elif step.kind == "flatten":
            output = np.repeat(first, step.positions)
        elif step.kind == "concat":
            output = np.concatenate([first, *others])
        for other in others if step.kind == "join" else ():
            sets.unite(first, other)
        tensors[index] = output
    roots = sets.find_roots()
    return tuple(roots[tensors[index]] for index in range(len(steps)))


class _ChannelSets:
    """A union-find of channels."""

    def __init__(self) -> None:
        self._parents: list[int] = []

    def add_sets(self, count: int) -> ChannelArray:
        """So many new channels, each a set of its own."""
        start = len(self._parents)
        self._parents.extend(range(start, start + count))
        return np.arange(start, start + count)

    def unite(self, some: ChannelArray, others: ChannelArray) -> None:
        for one, other in zip(some.tolist(), others.tolist(), strict=True):
            first, second = sorted((self._find_root(one), self._find_root(other)))
            self._parents[second] = first

    def find_roots(self) -> ChannelArray:
        return np.array([self._find_root(label) for label in range(len(self._parents))])

    def _find_root(self, label: int) -> int:
        while self._parents[label] != label:
            self._parents[label] = label = self._parents[self._parents[label]]
        return label
