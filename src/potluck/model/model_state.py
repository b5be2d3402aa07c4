"""A model's numbers as two flat vectors, one of what is trained and one of what is merely kept, in the chain's order.

Flat vectors make a segment of layers a slice, an update one tensor, a merge one addition and an optimizer step one
call. What is trained goes into `params`; batch-norm statistics, counters and frozen weights go into `buffers`.
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
    """Where one parameter or buffer lies in its vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """The order of all entries and where each layer begins and ends."""

    params: tuple[TensorEntry, ...]
    buffers: tuple[TensorEntry, ...]
    param_bounds: tuple[int, ...]  # layer l is params[param_bounds[l] : param_bounds[l + 1]]
    buffer_bounds: tuple[int, ...]
    dtype: torch.dtype
    splits: tuple[int, ...] = ()  # into how many layers of its own each of the model's was split; empty: into one

    @property
    def layer_count(self) -> int:
        return len(self.param_bounds) - 1

    def split_ranges(self) -> list[range]:
        """The layers of this layout that make up each of the model's."""
        pieces = self.splits or (1,) * self.layer_count
        ends = list(accumulate(pieces))
        return [range(end - count, end) for end, count in zip(ends, pieces, strict=True)]

    def split_layers(self, share: float) -> WeightLayout:
        """The same numbers in finer layers: none has more than this share of all parameters.

        A transfer can then be cut inside a layer that holds most of the model. Buffers stay with a layer's last piece.
        """
        most = max(1, math.ceil(share * self.param_bounds[-1]))
        params, buffers, pieces = [0], [0], []
        for layer in range(self.layer_count):
            begin, end = self.param_bounds[layer], self.param_bounds[layer + 1]
            count = max(1, math.ceil((end - begin) / most))
            params += [begin + (end - begin) * place // count for place in range(1, count + 1)]
            buffers += [self.buffer_bounds[layer]] * (count - 1) + [self.buffer_bounds[layer + 1]]
            pieces.append(count)
        return replace(self, param_bounds=tuple(params), buffer_bounds=tuple(buffers), splits=tuple(pieces))

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        return (self.param_bounds[-1] + self.buffer_bounds[-1]) * self.itemsize

    def digest(self) -> str:
        """Tells models apart whose layers have other names, shapes or bounds, whatever their numbers are."""
        said = (self.params, self.buffers, self.param_bounds, self.buffer_bounds, str(self.dtype))
        return hashlib.sha256(repr(said).encode()).hexdigest()

    def layer_slices(self, first: int, last: int) -> tuple[slice, slice]:
        """Where the layers `first` to `last` (included) lie in the two vectors."""
        params = slice(self.param_bounds[first], self.param_bounds[last + 1])
        return params, slice(self.buffer_bounds[first], self.buffer_bounds[last + 1])

    def segment_bytes(self, first: int, last: int) -> int:
        params, buffers = self.layer_slices(first, last)
        return int((params.stop - params.start + buffers.stop - buffers.start) * self.itemsize)

    @staticmethod
    def of_module(module: nn.Module, layers: Sequence[tuple[Sequence[str], Sequence[str]]]) -> WeightLayout:
        """The layout of a module whose layers own these parameters and buffers (by name)."""
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
            raise ModelError("the model has no parameter that can be trained")
        dtypes = {param.dtype for param in params.values()}
        if torch.bfloat16 in dtypes:
            raise ModelError("bfloat16 parameters cannot go over the wire; train in float32 (model.float())")
        if len(dtypes) > 1:
            raise ModelError(f"all parameters must have one dtype, got {', '.join(sorted(map(str, dtypes)))}")
        return WeightLayout(tuple(trained), tuple(kept), tuple(param_bounds), tuple(buffer_bounds), dtypes.pop())


@dataclass(frozen=True, slots=True)
class ModelState:
    """One version of a model's numbers; never changed in place."""

    params: Tensor
    buffers: Tensor

    @staticmethod
    def of_module(module: nn.Module, layout: WeightLayout) -> ModelState:
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return ModelState(
            *(_flatten_tensors(entries, tensors, layout.dtype) for entries in (layout.params, layout.buffers))
        )

    def named_tensors(self, layout: WeightLayout) -> dict[str, Tensor]:
        """The numbers by name and in shape, as a state dict has them."""
        pairs = ((self.params, layout.params), (self.buffers, layout.buffers))
        return {
            entry.name: vector[entry.start : entry.stop].view(entry.shape)
            for vector, entries in pairs
            for entry in entries
        }


def bind_views(module: nn.Module, layout: WeightLayout) -> ModelState:
    """Make the module's tensors views of two flat vectors; writing to these is loading the model.

    Integer buffers (batch-norm's step counter) cannot be views of a float vector; `store` copies them over.
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
    """Whole numbers travel as the parameters' floats and must survive that."""
    if tensor.is_floating_point() or tensor.is_meta:
        return
    if not torch.equal(tensor.to(dtype).to(tensor.dtype), tensor):
        raise ModelError(f"buffer {name!r} holds whole numbers too large for the parameters' {dtype} to carry")


def _flatten_tensors(entries: tuple[TensorEntry, ...], tensors: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    for entry in entries:
        _check_counter(entry.name, tensors[entry.name], dtype)
    flat = [tensors[entry.name].detach().reshape(-1).to(dtype) for entry in entries]
    return torch.cat(flat) if flat else torch.zeros(0, dtype=dtype)
