"""A model's state as two flat vectors in the order of its layers: trained parameters, and everything else.

Flat vectors make a segment of layers a slice, an update one tensor, a merge one addition and an optimizer step one
call. Trained parameters go into `params`; batch-norm statistics, counters and frozen weights go into `buffers`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from potluck.errors import ModelError

__all__ = ["ModelState", "TensorEntry", "WeightLayout", "bind_views"]


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

    @staticmethod
    def of_module(module: nn.Module, layers: Sequence[tuple[Sequence[str], Sequence[str]]]) -> WeightLayout:
        """The layout of a module whose layers own these parameters and buffers, given by name."""
        params, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        trained: list[TensorEntry] = []
        kept: list[TensorEntry] = []
        param_bounds, buffer_bounds = [0], [0]
        for names, buffer_names in layers:
            for name in names:
                _append_entry(trained if params[name].requires_grad else kept, name, params[name])
            for name in buffer_names:
                _append_entry(kept, name, buffers[name])
            param_bounds.append(trained[-1].stop if trained else 0)
            buffer_bounds.append(kept[-1].stop if kept else 0)
        missing = (params.keys() | buffers.keys()) - {entry.name for entry in (*trained, *kept)}
        assert not missing, f"layers leave out {sorted(missing)}"
        if not trained:
            raise ModelError("the model has no parameter that requires a gradient, so there is nothing to train")
        dtypes = {param.dtype for param in params.values()}
        if torch.bfloat16 in dtypes:
            raise ModelError("bfloat16 parameters cannot be sent; train in float32 (model.float())")
        if len(dtypes) > 1:
            raise ModelError(f"all parameters must have one dtype, got {', '.join(sorted(map(str, dtypes)))}")
        return WeightLayout(tuple(trained), tuple(kept), tuple(param_bounds), tuple(buffer_bounds), dtypes.pop())


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
        if tensors[name].dtype == layout.dtype:
            tensors[name].data = view
    return state


def _append_entry(entries: list[TensorEntry], name: str, tensor: Tensor) -> None:
    start = entries[-1].stop if entries else 0
    entries.append(TensorEntry(name, tuple(tensor.shape), start, start + tensor.numel()))


def _check_counter(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Integers are sent as floats of the parameters' dtype, which must represent them exactly."""
    if tensor.is_floating_point() or tensor.is_meta:
        return
    if not torch.equal(tensor.to(dtype).to(tensor.dtype), tensor):
        raise ModelError(f"buffer {name!r} has integers that the parameters' {dtype} cannot represent exactly")


def _flatten_tensors(entries: tuple[TensorEntry, ...], tensors: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    for entry in entries:
        _check_counter(entry.name, tensors[entry.name], dtype)
    flat = [tensors[entry.name].detach().reshape(-1).to(dtype) for entry in entries]
    return torch.cat(flat) if flat else torch.zeros(0, dtype=dtype)
