"""Selects a sub-model's entries in the whole model's vectors, to gather them and scatter them back.

Most entries are in kernels, and a kernel is kept or dropped as a whole, so kernels are indexed, matrix by matrix.
Vectors (norms, biases, statistics) are small and many, so one index covers all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potluck.model.model_state import TensorEntry
from potluck.model.submodels.channel_sets import Axis

__all__ = [
    "KeptIndices",
    "SubmodelSelection",
    "Subsets",
    "TensorAxes",
    "VectorSelection",
    "VectorSelector",
    "narrowed_length",
    "narrowed_shape",
]

MAX_CACHED_SLICES = 64

Indices = npt.NDArray[np.int64]
Subsets = Sequence[Indices | None]  # the kept units of every set, ascending; None keeps all


@dataclass(frozen=True, slots=True)
class TensorAxes:
    """The channel sets along the axes of a parameter; None is an axis that is never narrowed."""

    rows: Axis | None = None
    columns: Axis | None = None
    inputs_first: bool = False  # whether a layer's inputs are the rows of its weight

    @property
    def inputs(self) -> Axis | None:
        """The axis of a layer's inputs."""
        return self.rows if self.inputs_first else self.columns


class KeptIndices:
    """The indices of the kept units along each axis, computed once per axis."""

    def __init__(self, subsets: Subsets) -> None:
        self._subsets = subsets
        self._cached: dict[Axis, Indices | None] = {}

    def axis_indices(self, axis: Axis | None) -> Indices | None:
        """The kept indices of an axis; None if all of it is kept."""
        if axis is None:
            return None
        if axis not in self._cached:
            self._cached[axis] = self._compute_indices(axis)
        return self._cached[axis]

    def _compute_indices(self, axis: Axis) -> Indices | None:
        if all(run.set is None or self._subsets[run.set] is None for run in axis):
            return None
        indices, start = [], 0
        for run in axis:
            kept = None if run.set is None else self._subsets[run.set]
            units = np.arange(run.units) if kept is None else kept
            indices.append((units if run.features == 1 else _expand_units(units, run.features)) + start)
            start += run.units * run.features
        return indices[0] if len(indices) == 1 else np.concatenate(indices)


def narrowed_length(axis: Axis, counts: Sequence[int]) -> int:
    """The length of an axis when this many units of every set are kept."""
    return sum((run.units if run.set is None else counts[run.set]) * run.features for run in axis)


@dataclass(frozen=True, slots=True)
class _KernelSelection:
    """A matrix of kernels: its slices of the whole and of the small vector, and the indices of the kept kernels."""

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
        return torch.from_numpy(_expand_units(self.kernels.numpy(), self.kernel) + self.whole.start)


class VectorSelection:
    """One of a sub-model's two vectors: which entries of the whole vector it has, in the same order."""

    def __init__(
        self, size: int, kernels: Sequence[_KernelSelection], loose_in_whole: Tensor, loose_in_small: Tensor
    ) -> None:
        """`loose` are the indices of all entries that are not in a matrix, in both vectors."""
        self.size = size
        self._kernels = kernels
        self._loose_in_whole = loose_in_whole
        self._loose_in_small = loose_in_small

    @cached_property
    def index(self) -> Tensor:
        """The index of every entry in the whole vector, so that small = whole[index]."""
        index = torch.empty(self.size, dtype=torch.int64)
        index[self._loose_in_small] = self._loose_in_whole
        for kernels in self._kernels:
            index[kernels.small] = kernels.index()
        return index

    def gather(self, whole: Tensor, out: Tensor | None = None) -> Tensor:
        """The small vector, taken from the whole one."""
        small = whole.new_empty(self.size) if out is None else out
        small.index_copy_(0, self._loose_in_small, whole.index_select(0, self._loose_in_whole))
        for kernels in self._kernels:
            kernels.gather(whole, small)
        return small

    def scatter(self, small: Tensor, whole: Tensor) -> None:
        """Write the small vector back; all else in the whole one is unchanged."""
        whole.index_copy_(0, self._loose_in_whole, small.index_select(0, self._loose_in_small))
        for kernels in self._kernels:
            kernels.scatter(small, whole)


class VectorSelector:
    """One of the model's two vectors, from which sub-models are selected."""

    def __init__(self, entries: Sequence[TensorEntry], axes: dict[str, TensorAxes]) -> None:
        self._entries = [(entry, axes.get(entry.name, TensorAxes())) for entry in entries]
        self._cached_slices: dict[tuple[int, ...], tuple[list[slice], Tensor]] = {}

    def select_vector(self, kept: KeptIndices, counts: tuple[int, ...]) -> VectorSelection:
        """The entries that are kept."""
        slices, loose_in_small = self._narrow_slices(counts)
        kernels, loose = [], []
        for (entry, axes), small in zip(self._entries, slices, strict=True):
            if _is_matrix(entry):
                kernels.append(
                    _select_kernels(entry, kept.axis_indices(axes.rows), kept.axis_indices(axes.columns), small)
                )
            else:
                rows = kept.axis_indices(axes.rows)
                loose.append(np.arange(entry.start, entry.stop) if rows is None else rows + entry.start)
        return VectorSelection(slices[-1].stop if slices else 0, kernels, _concatenate_indices(loose), loose_in_small)

    def _narrow_slices(self, counts: tuple[int, ...]) -> tuple[list[slice], Tensor]:
        """The slice of every tensor in the small vector, and the indices of all entries that are not in a matrix."""
        if counts not in self._cached_slices:
            if len(self._cached_slices) >= MAX_CACHED_SLICES:
                self._cached_slices.clear()
            slices, start = [], 0
            for entry, axes in self._entries:
                size = int(np.prod(narrowed_shape(entry.shape, axes, counts), dtype=np.int64))
                slices.append(slice(start, start + size))
                start += size
            pairs = zip(self._entries, slices, strict=True)
            loose = [np.arange(small.start, small.stop) for (entry, _), small in pairs if not _is_matrix(entry)]
            self._cached_slices[counts] = slices, _concatenate_indices(loose)
        return self._cached_slices[counts]


@dataclass(frozen=True)
class SubmodelSelection:
    """A sub-model: its number of units of every set, and its entries in both vectors."""

    counts: tuple[int, ...]
    params: VectorSelection
    buffers: VectorSelection


def narrowed_shape(whole: Sequence[int], axes: TensorAxes, counts: Sequence[int]) -> tuple[int, ...]:
    """A shape when this many units of every set are kept."""
    pairs = zip((axes.rows, axes.columns), whole, strict=False)
    sizes = [size if axis is None else narrowed_length(axis, counts) for axis, size in pairs]
    return (*sizes, *whole[len(sizes) :])


def _select_kernels(
    entry: TensorEntry, rows: Indices | None, columns: Indices | None, small: slice
) -> _KernelSelection:
    whole = slice(entry.start, entry.stop)
    if rows is None and columns is None:
        return _KernelSelection(whole, small, None, 1)
    if columns is None:
        kernels, depth = rows, 1
    else:
        rows = np.arange(entry.shape[0]) if rows is None else rows
        kernels, depth = (rows[:, None] * entry.shape[1] + columns).reshape(-1), 2
    assert kernels is not None
    return _KernelSelection(whole, small, torch.from_numpy(kernels), int(np.prod(entry.shape[depth:], dtype=np.int64)))


def _is_matrix(entry: TensorEntry) -> bool:
    return len(entry.shape) > 1


def _expand_units(units: Indices, features: int) -> Indices:
    expanded: Indices = (units[:, None] * features + np.arange(features)).reshape(-1)
    return expanded


def _concatenate_indices(indices: list[Indices]) -> Tensor:
    return torch.from_numpy(np.concatenate(indices) if indices else np.zeros(0, dtype=np.int64))
