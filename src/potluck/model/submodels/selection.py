"""Where a sub-model's numbers lie in the whole model's vectors: gather them, scatter them back.

Most numbers are kernels, and a kernel is kept or dropped whole, so it is kernels that are looked up, matrix by matrix.
What is no matrix (norms, biases, statistics) is small and many: all of it goes in one look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potluck.model.state import Entry
from potluck.model.submodels.channels import Axis

__all__ = ["Axes", "Half", "Kept", "Plan", "Selection", "Subsets", "length", "shape"]

MOST_REMEMBERED = 64

Indices = npt.NDArray[np.int64]
Subsets = Sequence[Indices | None]  # for every set the units that are kept, rising; None keeps all


@dataclass(frozen=True, slots=True)
class Axes:
    """What the axes of a parameter are made of; None is an axis that is never cut."""

    rows: Axis | None = None
    columns: Axis | None = None


class Kept:
    """Where the kept units lie on an axis, worked out once for each axis."""

    def __init__(self, subsets: Subsets) -> None:
        self._subsets = subsets
        self._known: dict[Axis, Indices | None] = {}

    def on(self, axis: Axis | None) -> Indices | None:
        """The kept places of an axis; None if all of it is kept."""
        if axis is None:
            return None
        if axis not in self._known:
            self._known[axis] = self._places(axis)
        return self._known[axis]

    def _places(self, axis: Axis) -> Indices | None:
        if all(run.set is None or self._subsets[run.set] is None for run in axis):
            return None
        found, start = [], 0
        for run in axis:
            kept = None if run.set is None else self._subsets[run.set]
            units = np.arange(run.units) if kept is None else kept
            places = units + start if run.features == 1 else _spread(units, run.features) + start
            found.append(places)
            start += run.units * run.features
        return found[0] if len(found) == 1 else np.concatenate(found)


def length(axis: Axis, counts: Sequence[int]) -> int:
    """How long an axis is when so many units of every set are kept."""
    return sum((run.units if run.set is None else counts[run.set]) * run.features for run in axis)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A matrix of kernels: its place in the whole vector, its place in the small one, and which are kept."""

    whole: slice
    small: slice
    kernels: Tensor | None  # None: all of them
    kernel: int

    def gather(self, whole: Tensor, small: Tensor) -> None:
        source, target = whole[self.whole], small[self.small]
        if self.kernels is None:
            target.copy_(source)
        else:
            torch.index_select(source.view(-1, self.kernel), 0, self.kernels, out=target.view(-1, self.kernel))

    def scatter(self, small: Tensor, whole: Tensor) -> None:
        source, target = small[self.small], whole[self.whole]
        if self.kernels is None:
            target.copy_(source)
        else:
            target.view(-1, self.kernel).index_copy_(0, self.kernels, source.view(-1, self.kernel))

    def index(self) -> Tensor:
        if self.kernels is None:
            return torch.arange(self.whole.start, self.whole.stop)
        return torch.from_numpy(_spread(self.kernels.numpy(), self.kernel) + self.whole.start)


class Half:
    """One of a sub-model's two vectors: which numbers of the whole one it holds, in the same order."""

    def __init__(self, size: int, cuts: Sequence[_Cut], lone: Tensor, places: Tensor) -> None:
        self.size = size
        self._cuts = cuts
        self._lone = lone  # where the numbers that are in no matrix lie in the whole vector, and in the small one
        self._places = places

    @cached_property
    def index(self) -> Tensor:
        """The place of every number in the whole vector, so that small = whole[index]."""
        found = torch.empty(self.size, dtype=torch.int64)
        found[self._places] = self._lone
        for cut in self._cuts:
            found[cut.small] = cut.index()
        return found

    def gather(self, whole: Tensor, out: Tensor | None = None) -> Tensor:
        """The small vector."""
        small = whole.new_empty(self.size) if out is None else out
        small.index_copy_(0, self._places, whole.index_select(0, self._lone))
        for cut in self._cuts:
            cut.gather(whole, small)
        return small

    def scatter(self, small: Tensor, whole: Tensor) -> None:
        """Write the small vector back; all else in the whole one stays as it is."""
        whole.index_copy_(0, self._lone, small.index_select(0, self._places))
        for cut in self._cuts:
            cut.scatter(small, whole)


class Plan:
    """One of the model's two vectors, ready to be cut."""

    def __init__(self, entries: Sequence[Entry], axes: dict[str, Axes]) -> None:
        self._entries = [(entry, axes.get(entry.name, Axes())) for entry in entries]
        self._places: dict[tuple[int, ...], tuple[list[slice], Tensor]] = {}

    def half(self, kept: Kept, counts: tuple[int, ...]) -> Half:
        """The numbers that are kept."""
        slices, places = self._small(counts)
        cuts, lone = [], []
        for (entry, axes), small in zip(self._entries, slices, strict=True):
            if _is_matrix(entry):
                cuts.append(_cut(entry, kept.on(axes.rows), kept.on(axes.columns), small))
            else:
                rows = kept.on(axes.rows)
                lone.append(np.arange(entry.start, entry.stop) if rows is None else rows + entry.start)
        return Half(slices[-1].stop if slices else 0, cuts, _joined(lone), places)

    def _small(self, counts: tuple[int, ...]) -> tuple[list[slice], Tensor]:
        """Where every entry lies in the small vector, and all numbers that are in no matrix."""
        if counts not in self._places:
            if len(self._places) >= MOST_REMEMBERED:
                self._places.clear()
            slices, start = [], 0
            for entry, axes in self._entries:
                size = int(np.prod(shape(entry.shape, axes, counts), dtype=np.int64))
                slices.append(slice(start, start + size))
                start += size
            pairs = zip(self._entries, slices, strict=True)
            lone = [np.arange(part.start, part.stop) for (entry, _), part in pairs if not _is_matrix(entry)]
            self._places[counts] = slices, _joined(lone)
        return self._places[counts]


@dataclass(frozen=True)
class Selection:
    """A sub-model: how many units of every set it has, and where its numbers lie."""

    counts: tuple[int, ...]
    params: Half
    buffers: Half


def shape(whole: Sequence[int], axes: Axes, counts: Sequence[int]) -> tuple[int, ...]:
    """What becomes of a shape when so many units of every set are kept."""
    cut = zip((axes.rows, axes.columns), whole, strict=False)
    sizes = [size if axis is None else length(axis, counts) for axis, size in cut]
    return (*sizes, *whole[len(sizes) :])


def _cut(entry: Entry, rows: Indices | None, columns: Indices | None, small: slice) -> _Cut:
    whole = slice(entry.start, entry.stop)
    if rows is None and columns is None:
        return _Cut(whole, small, None, 1)
    if columns is None:
        kernels, depth = rows, 1
    else:
        rows = np.arange(entry.shape[0]) if rows is None else rows
        kernels, depth = (rows[:, None] * entry.shape[1] + columns).reshape(-1), 2
    assert kernels is not None
    return _Cut(whole, small, torch.from_numpy(kernels), int(np.prod(entry.shape[depth:], dtype=np.int64)))


def _is_matrix(entry: Entry) -> bool:
    return len(entry.shape) > 1


def _spread(units: Indices, features: int) -> Indices:
    found: Indices = (units[:, None] * features + np.arange(features)).reshape(-1)
    return found


def _joined(indices: list[Indices]) -> Tensor:
    return torch.from_numpy(np.concatenate(indices) if indices else np.zeros(0, dtype=np.int64))
