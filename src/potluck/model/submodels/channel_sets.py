"""Which channels must be kept or dropped together: sets, and the runs of them that an axis of a tensor is made of.

    conv a ──▶ (a)─┐                 a residual sum makes two sets one
                   + ──▶ (a)──┐
    conv b ──▶ (b)─┘          cat ──▶ (a, c) ──▶ flatten ──▶ (a × 49, c × 49)
    conv c ──▶ (c)────────────┘       a concatenation lays them side by side, flattening repeats each channel

A set is *pinned* where nothing of it may be dropped: the model's input and output, and wherever two axes are made
of different sets and yet are added. Its *grain* is how many neighbouring channels can only go together (the
channels of one group of a grouped convolution).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Axis", "AxisRun", "ChannelUnionFind", "Channels"]


@dataclass(frozen=True, slots=True)
class ChannelSpan:
    """A set's channels in a row, each standing for `block` neighbouring features."""

    label: int
    block: int = 1


Channels = tuple[ChannelSpan, ...]


@dataclass(frozen=True, slots=True)
class AxisRun:
    """Units of one set in a row, `features` of the axis for each; set None is never dropped."""

    set: int | None
    units: int
    features: int


Axis = tuple[AxisRun, ...]


@dataclass(slots=True)
class _ChannelSetRecord:
    name: str
    size: int
    grain: int = 1
    pinned: bool = False


class ChannelUnionFind:
    """All sets of a model while they are being found out (a union-find)."""

    def __init__(self) -> None:
        self._records: list[_ChannelSetRecord] = []
        self._parents: list[int] = []

    def add_set(self, name: str, size: int, *, pinned: bool = False) -> Channels:
        """Channels that belong to nothing else yet."""
        self._records.append(_ChannelSetRecord(name, size, pinned=pinned))
        self._parents.append(len(self._parents))
        return (ChannelSpan(len(self._parents) - 1),)

    def axis_length(self, channels: Channels) -> int:
        """The length of an axis of these channels."""
        return sum(self._span_length(piece) for piece in channels)

    def pin(self, channels: Iterable[ChannelSpan]) -> None:
        """Nothing of these may be dropped."""
        for piece in channels:
            self._root_record(piece.label).pinned = True

    def join_sets(self, first: Channels, second: Channels) -> Channels:
        """The channels of a sum (or product) of both; an axis of length one is broadcast."""
        if 1 in (self.axis_length(first), self.axis_length(second)):
            return max(first, second, key=self.axis_length)
        if [*map(self._span_shape, first)] == [*map(self._span_shape, second)]:
            for one, other in zip(first, second, strict=True):
                self._unite_sets(one.label, other.label)
        else:
            self.pin((*first, *second))
        return first

    def coarsen(self, channels: Channels, run: int) -> None:
        """From here on only whole runs of so many features can be dropped."""
        start = 0
        for piece in channels:
            if start % run or self._span_length(piece) % run:
                self.pin(channels)
                return
            start += self._span_length(piece)
        for piece in channels:
            draft = self._root_record(piece.label)
            draft.grain = math.lcm(draft.grain, math.lcm(run, piece.block) // piece.block)

    def multiply_features(self, channels: Channels, times: int, of: int = 1) -> Channels | None:
        """The axis in which every `of` features became `times`; None if a channel does not become a whole number."""
        if any(piece.block * times % of for piece in channels):
            return None
        return tuple(ChannelSpan(piece.label, piece.block * times // of) for piece in channels)

    def is_droppable(self, channels: Channels) -> bool:
        """May anything of these be dropped, as far as is known?"""
        return any(self._is_root_droppable(self._find_root(piece.label)) for piece in channels)

    def droppable_names(self) -> dict[int, str]:
        """The label of every set that may be dropped, in the order of execution, and its name."""
        roots = dict.fromkeys(self._find_root(label) for label in range(len(self._parents)))
        return {root: self._records[root].name for root in roots if self._is_root_droppable(root)}

    def set_extent(self, label: int) -> tuple[int, int]:
        """How many parts of a set can be dropped one by one, and how many channels each has."""
        draft = self._root_record(label)
        return draft.size // draft.grain, draft.grain

    def final_axis(self, channels: Channels, order: dict[int, int]) -> Axis:
        """The axis in its final form; `order` numbers the sets that may be dropped."""
        return tuple(self._axis_run(piece, order.get(self._find_root(piece.label))) for piece in channels)

    def _axis_run(self, piece: ChannelSpan, number: int | None) -> AxisRun:
        if number is None:
            return AxisRun(None, self._span_length(piece), 1)
        units, grain = self.set_extent(piece.label)
        return AxisRun(number, units, grain * piece.block)

    def _is_root_droppable(self, root: int) -> bool:
        draft = self._records[root]
        return not draft.pinned and draft.size % draft.grain == 0 and draft.size > draft.grain

    def _unite_sets(self, one: int, other: int) -> None:
        first, second = sorted((self._find_root(one), self._find_root(other)))
        if first != second:
            kept, gone = self._records[first], self._records[second]
            kept.grain = math.lcm(kept.grain, gone.grain)
            kept.pinned = kept.pinned or gone.pinned
            self._parents[second] = first

    def _find_root(self, label: int) -> int:
        while self._parents[label] != label:
            self._parents[label] = label = self._parents[self._parents[label]]
        return label

    def _root_record(self, label: int) -> _ChannelSetRecord:
        return self._records[self._find_root(label)]

    def _span_length(self, piece: ChannelSpan) -> int:
        return self._root_record(piece.label).size * piece.block

    def _span_shape(self, piece: ChannelSpan) -> tuple[int, int]:
        return self._root_record(piece.label).size, piece.block
