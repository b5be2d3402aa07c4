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

__all__ = ["Axis", "Channels", "Pool", "Run"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A set's channels in a row, each standing for `block` neighbouring features."""

    label: int
    block: int = 1


Channels = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Units of one set in a row, `features` of the axis for each; set None is never dropped."""

    set: int | None
    units: int
    features: int


Axis = tuple[Run, ...]


@dataclass(slots=True)
class _Draft:
    name: str
    size: int
    grain: int = 1
    pinned: bool = False


class Pool:
    """All sets of a model while they are being found out (a union-find)."""

    def __init__(self) -> None:
        self._drafts: list[_Draft] = []
        self._parents: list[int] = []

    def new(self, name: str, size: int, *, pinned: bool = False) -> Channels:
        """Channels that belong to nothing else yet."""
        self._drafts.append(_Draft(name, size, pinned=pinned))
        self._parents.append(len(self._parents))
        return (Piece(len(self._parents) - 1),)

    def features(self, channels: Channels) -> int:
        """The length of an axis of these channels."""
        return sum(self._size(piece) for piece in channels)

    def pin(self, channels: Iterable[Piece]) -> None:
        """Nothing of these may be dropped."""
        for piece in channels:
            self._find(piece.label).pinned = True

    def join(self, first: Channels, second: Channels) -> Channels:
        """The channels of a sum (or product) of both; an axis of length one is broadcast."""
        if 1 in (self.features(first), self.features(second)):
            return max(first, second, key=self.features)
        if [*map(self._shape, first)] == [*map(self._shape, second)]:
            for one, other in zip(first, second, strict=True):
                self._unite(one.label, other.label)
        else:
            self.pin((*first, *second))
        return first

    def coarsen(self, channels: Channels, run: int) -> None:
        """From here on only whole runs of so many features can be dropped."""
        start = 0
        for piece in channels:
            if start % run or self._size(piece) % run:
                self.pin(channels)
                return
            start += self._size(piece)
        for piece in channels:
            draft = self._find(piece.label)
            draft.grain = math.lcm(draft.grain, math.lcm(run, piece.block) // piece.block)

    def multiply(self, channels: Channels, times: int, of: int = 1) -> Channels | None:
        """The axis in which every `of` features became `times`; None if a channel does not become a whole number."""
        if any(piece.block * times % of for piece in channels):
            return None
        return tuple(Piece(piece.label, piece.block * times // of) for piece in channels)

    def droppable(self, channels: Channels) -> bool:
        """May anything of these be dropped, as far as is known?"""
        return any(self._droppable(self._root(piece.label)) for piece in channels)

    def names(self) -> dict[int, str]:
        """The label of every set that may be dropped, in the order of execution, and its name."""
        roots = dict.fromkeys(self._root(label) for label in range(len(self._parents)))
        return {root: self._drafts[root].name for root in roots if self._droppable(root)}

    def extent(self, label: int) -> tuple[int, int]:
        """How many parts of a set can be dropped one by one, and how many channels each has."""
        draft = self._find(label)
        return draft.size // draft.grain, draft.grain

    def axis(self, channels: Channels, order: dict[int, int]) -> Axis:
        """The axis in its final form; `order` numbers the sets that may be dropped."""
        return tuple(self._run(piece, order.get(self._root(piece.label))) for piece in channels)

    def _run(self, piece: Piece, number: int | None) -> Run:
        if number is None:
            return Run(None, self._size(piece), 1)
        units, grain = self.extent(piece.label)
        return Run(number, units, grain * piece.block)

    def _droppable(self, root: int) -> bool:
        draft = self._drafts[root]
        return not draft.pinned and draft.size % draft.grain == 0 and draft.size > draft.grain

    def _unite(self, one: int, other: int) -> None:
        first, second = sorted((self._root(one), self._root(other)))
        if first != second:
            kept, gone = self._drafts[first], self._drafts[second]
            kept.grain = math.lcm(kept.grain, gone.grain)
            kept.pinned = kept.pinned or gone.pinned
            self._parents[second] = first

    def _root(self, label: int) -> int:
        while self._parents[label] != label:
            self._parents[label] = label = self._parents[self._parents[label]]
        return label

    def _find(self, label: int) -> _Draft:
        return self._drafts[self._root(label)]

    def _size(self, piece: Piece) -> int:
        return self._find(piece.label).size * piece.block

    def _shape(self, piece: Piece) -> tuple[int, int]:
        return self._find(piece.label).size, piece.block
