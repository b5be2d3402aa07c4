"""Finds out which channels must be kept or dropped together, and which channels each axis of a tensor consists of.

    conv a ──▶ (a)─┐                 a residual sum unites two sets
                   + ──▶ (a)──┐
    conv b ──▶ (b)─┘          cat ──▶ (a, c) ──▶ flatten ──▶ (a × 49, c × 49)
    conv c ──▶ (c)────────────┘       a concatenation puts sets in a row, flattening repeats each channel

A set is *pinned* if nothing of it may be dropped: the model's input and output, and wherever two axes that consist
of different sets are added. Its *grain* is how many adjacent channels can only be dropped together (the channels of
one group of a grouped convolution).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Axis", "AxisRun", "ChannelUnionFind", "Channels"]


@dataclass(frozen=True, slots=True)
class ChannelSpan:
    """A set's channels in a row, each taking up `block` adjacent features of the axis."""

    label: int
    block: int = 1


Channels = tuple[ChannelSpan, ...]


@dataclass(frozen=True, slots=True)
class AxisRun:
    """Units of one set in a row, each taking up `features` of the axis; set None is never dropped."""

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
    """The channel sets of a model while it is being traced (a union-find)."""

    def __init__(self) -> None:
        self._records: list[_ChannelSetRecord] = []
        self._parents: list[int] = []

    def add_set(self, name: str, size: int, *, pinned: bool = False) -> Channels:
        """A new set that is not united with any other."""
        self._records.append(_ChannelSetRecord(name, size, pinned=pinned))
        self._parents.append(len(self._parents))
        return (ChannelSpan(len(self._parents) - 1),)

    def axis_length(self, channels: Channels) -> int:
        """The length of an axis of these channels."""
        return sum(self._span_length(span) for span in channels)

    def pin(self, channels: Iterable[ChannelSpan]) -> None:
        """Forbid dropping any of these channels."""
        for span in channels:
            self._root_record(span.label).pinned = True

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
        """Allow dropping only whole runs of this many features."""
        start = 0
        for span in channels:
            if start % run or self._span_length(span) % run:
                self.pin(channels)
                return
            start += self._span_length(span)
        for span in channels:
            record = self._root_record(span.label)
            record.grain = math.lcm(record.grain, math.lcm(run, span.block) // span.block)

    def multiply_features(self, channels: Channels, times: int, of: int = 1) -> Channels | None:
        """The axis in which every `of` features became `times`; None if a channel does not become whole features."""
        if any(span.block * times % of for span in channels):
            return None
        return tuple(ChannelSpan(span.label, span.block * times // of) for span in channels)

    def is_droppable(self, channels: Channels) -> bool:
        """Whether any of these may be dropped, as far as is known."""
        return any(self._is_root_droppable(self._find_root(span.label)) for span in channels)

    def droppable_names(self) -> dict[int, str]:
        """The labels and names of all sets that may be dropped, in execution order."""
        roots = dict.fromkeys(self._find_root(label) for label in range(len(self._parents)))
        return {root: self._records[root].name for root in roots if self._is_root_droppable(root)}

    def set_extent(self, label: int) -> tuple[int, int]:
        """How many units of a set can be dropped one by one, and how many channels each has."""
        record = self._root_record(label)
        return record.size // record.grain, record.grain

    def final_axis(self, channels: Channels, order: dict[int, int]) -> Axis:
        """The final axis; `order` numbers the sets that may be dropped."""
        return tuple(self._axis_run(span, order.get(self._find_root(span.label))) for span in channels)

    def _axis_run(self, span: ChannelSpan, number: int | None) -> AxisRun:
        if number is None:
            return AxisRun(None, self._span_length(span), 1)
        units, grain = self.set_extent(span.label)
        return AxisRun(number, units, grain * span.block)

    def _is_root_droppable(self, root: int) -> bool:
        record = self._records[root]
        return not record.pinned and record.size % record.grain == 0 and record.size > record.grain

    def _unite_sets(self, one: int, other: int) -> None:
        first, second = sorted((self._find_root(one), self._find_root(other)))
        if first != second:
            kept, merged = self._records[first], self._records[second]
            kept.grain = math.lcm(kept.grain, merged.grain)
            kept.pinned = kept.pinned or merged.pinned
            self._parents[second] = first

    def _find_root(self, label: int) -> int:
        while self._parents[label] != label:
            self._parents[label] = label = self._parents[self._parents[label]]
        return label

    def _root_record(self, label: int) -> _ChannelSetRecord:
        return self._records[self._find_root(label)]

    def _span_length(self, span: ChannelSpan) -> int:
        return self._root_record(span.label).size * span.block

    def _span_shape(self, span: ChannelSpan) -> tuple[int, int]:
        return self._root_record(span.label).size, span.block
