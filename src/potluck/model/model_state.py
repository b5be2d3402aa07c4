"""A model's state as two flat vectors in the order of its layers: trained parameters, and the buffers that change.

Flat vectors make a segment of layers a slice, an update one tensor, a merge one addition and an optimizer step one
call. Trained parameters go into `params`, batch-norm statistics and counters into `buffers`. Frozen parameters and
constant buffers are in neither (`frozen_weights.py`), except where a width method slices them with the rest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from potluck.errors import ModelError

if TYPE_CHECKING:
    from potluck.model.layer_chain import LayerChain

__all__ = ["ModelState", "TensorEntry", "WeightLayout", "are_finite", "bind_views"]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """The offsets of one parameter or buffer in its vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """The order of all entries and the bounds of each layer."""

    params: tuple[TensorEntry, ...]
    buffers: tuple[TensorEntry, ...]
    param_bounds: tuple[int, ...]  # layer l is params[param_bounds[l] : param_bounds[l + 1]]
    buffer_bounds: tuple[int, ...]
    dtype: torch.dtype
    splits: tuple[int, ...] = ()  # how many layers of this layout each of the model's was split into; empty: one

    @property
    def layer_count(self) -> int:
        return len(self.param_bounds) - 1

    def split_ranges(self) -> list[range]:
        """The layers of this layout that make up each of the model's."""
        counts = self.splits or (1,) * self.layer_count
        ends = list(accumulate(counts))
        return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]

    def split_layers(self, fraction: float) -> WeightLayout:
        """The same entries in finer layers, none with more than this fraction of all parameters.

        A transfer can then be cut inside a layer that holds most of the model. Buffers go with the last split layer.
        """
        most = max(1, math.ceil(fraction * self.param_bounds[-1]))
        params, buffers, splits = [0], [0], []
        for layer in range(self.layer_count):
            begin, end = self.param_bounds[layer], self.param_bounds[layer + 1]
            count = max(1, math.ceil((end - begin) / most))
            params += [begin + (end - begin) * index // count for index in range(1, count + 1)]
            buffers += [self.buffer_bounds[layer]] * (count - 1) + [self.buffer_bounds[layer + 1]]
            splits.append(count)
        return replace(self, param_bounds=tuple(params), buffer_bounds=tuple(buffers), splits=tuple(splits))

    def with_shapes(self, shape_of: Callable[[TensorEntry], tuple[int, ...]]) -> WeightLayout:
        """The same entries in the same layers, each with another shape; only of a layout with one layer for each."""
        params, param_bounds = _reshape_entries(self.params, self.param_bounds, shape_of)
        buffers, buffer_bounds = _reshape_entries(self.buffers, self.buffer_bounds, shape_of)
        return WeightLayout(params, buffers, param_bounds, buffer_bounds, self.dtype)

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        return (self.param_bounds[-1] + self.buffer_bounds[-1]) * self.itemsize

    def digest(self) -> str:
        """A hash of the names, shapes, bounds and dtype, independent of the weights."""
        described = (self.params, self.buffers, self.param_bounds, self.buffer_bounds, str(self.dtype))
        return hashlib.sha256(repr(described).encode()).hexdigest()

    def layer_slices(self, first: int, last: int) -> tuple[slice, slice]:
        """The slices of the layers `first` to `last` (inclusive) in the two vectors."""
        params = slice(self.param_bounds[first], self.param_bounds[last + 1])
        return params, slice(self.buffer_bounds[first], self.buffer_bounds[last + 1])

    def segment_bytes(self, first: int, last: int) -> int:
        """Uncompressed bytes of the layers `first` to `last` (inclusive)."""
        params, buffers = self.layer_slices(first, last)
        return int((params.stop - params.start + buffers.stop - buffers.start) * self.itemsize)

    @property
    def names(self) -> frozenset[str]:
        """The names of all entries."""
        return frozenset(entry.name for entry in (*self.params, *self.buffers))

    @staticmethod
    def of_chain(chain: LayerChain) -> WeightLayout:
        """The layout of what training changes: trained parameters and changing buffers."""
        names = [(layer.parameters, layer.changing_buffers) for layer in chain.layers]
        return WeightLayout.of_module(chain.module, names, frozen=False)

    @staticmethod
    def of_module(
        module: nn.Module, layers: Sequence[tuple[Sequence[str], Sequence[str]]], *, frozen: bool = True
    ) -> WeightLayout:
        """The layout of a module whose layers own these parameters and buffers, given by name.

        With `frozen`, the layers must own all of them, and frozen parameters go into `buffers`; without, frozen
        parameters are left out.
        """
        params, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        trained: list[TensorEntry] = []
        kept: list[TensorEntry] = []
        param_bounds, buffer_bounds = [0], [0]
        for names, buffer_names in layers:
            for name in names:
                if params[name].requires_grad:
                    _append_entry(trained, name, params[name])
                elif frozen:
                    _append_entry(kept, name, params[name])
            for name in buffer_names:
                _append_entry(kept, name, buffers[name])
            param_bounds.append(trained[-1].stop if trained else 0)
            buffer_bounds.append(kept[-1].stop if kept else 0)
        if frozen:
            missing = (params.keys() | buffers.keys()) - {entry.name for entry in (*trained, *kept)}
            assert not missing, f"layers leave out {sorted(missing)}"
        if not trained:
            raise ModelError("the model has no parameter that requires a gradient, so there is nothing to train")
        dtype = _one_dtype({param.dtype for param in params.values() if frozen or param.requires_grad})
        return WeightLayout(tuple(trained), tuple(kept), tuple(param_bounds), tuple(buffer_bounds), dtype)


@dataclass(frozen=True, slots=True)
class ModelState:
    """One version of a model's weights and buffers; never changed in place."""

    params: Tensor
    buffers: Tensor

    @staticmethod
    def of_module(module: nn.Module, layout: WeightLayout) -> ModelState:
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return ModelState(
            *(_flatten_tensors(entries, tensors, layout.dtype) for entries in (layout.params, layout.buffers))
        )

    def named_tensors(self, layout: WeightLayout) -> dict[str, Tensor]:
        """The tensors by name and in shape, as in a state dict."""
        pairs = ((self.params, layout.params), (self.buffers, layout.buffers))
        return {
            entry.name: vector[entry.start : entry.stop].view(entry.shape)
            for vector, entries in pairs
            for entry in entries
        }


def bind_views(module: nn.Module, layout: WeightLayout) -> ModelState:
    """Make the module's tensors views of two flat vectors, so that writing to the vectors loads the model.

    Integer buffers (batch norm's step counter) cannot be views of a float vector; ModelReplica copies them.
    """
    state = ModelState.of_module(module, layout)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, view in state.named_tensors(layout).items():
        if name in tensors and tensors[name].dtype == layout.dtype:
            tensors[name].data = view
    return state


def _one_dtype(dtypes: set[torch.dtype]) -> torch.dtype:
    if torch.bfloat16 in dtypes:
        raise ModelError("bfloat16 parameters cannot be sent; train in float32 (model.float())")
    if len(dtypes) > 1:
        raise ModelError(f"all parameters must have one dtype, got {', '.join(sorted(map(str, dtypes)))}")
    return dtypes.pop()


def _append_entry(entries: list[TensorEntry], name: str, tensor: Tensor) -> None:
    start = entries[-1].stop if entries else 0
    entries.append(TensorEntry(name, tuple(tensor.shape), start, start + tensor.numel()))


def _reshape_entries(
    entries: Sequence[TensorEntry], bounds: Sequence[int], shape_of: Callable[[TensorEntry], tuple[int, ...]]
) -> tuple[tuple[TensorEntry, ...], tuple[int, ...]]:
    """The entries with other shapes, and where the layers then end."""
    moved, ends, start = [], {0: 0}, 0
    for entry in entries:
        shape = shape_of(entry)
        moved.append(TensorEntry(entry.name, shape, start, start := start + math.prod(shape)))
        ends[entry.stop] = start
    return tuple(moved), tuple(ends[bound] for bound in bounds)


def _check_counter(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Integers are sent as floats of the parameters' dtype, which must represent them exactly."""
    if tensor.is_floating_point() or tensor.is_meta:
        return
    if not torch.equal(tensor.to(dtype).to(tensor.dtype), tensor):
        raise ModelError(f"buffer {name!r} has integers that the parameters' {dtype} cannot represent exactly")


def _flatten_tensors(entries: tuple[TensorEntry, ...], tensors: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    """The entries' values as one vector; one that the module does not have (an optimizer's state) is zero."""
    flat = []
    for entry in entries:
        tensor = tensors[entry.name] if entry.name in tensors else torch.zeros(entry.shape, dtype=dtype)
        _check_counter(entry.name, tensor, dtype)
        flat.append(tensor.detach().reshape(-1).to(dtype))
    return torch.cat(flat) if flat else torch.zeros(0, dtype=dtype)


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all values are finite: one pass without a copy, unless a sum itself overflows."""
    return all(
        math.isfinite(float(tensor.sum(dtype=torch.float64))) or bool(tensor.isfinite().all())
        for tensor in tensors
        if tensor.is_floating_point()
    )
