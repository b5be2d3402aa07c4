"""Optimizer state that is averaged: it travels, is merged and is saved as further buffers of the model.

Each layer's buffers are followed by one vector for each moment (momentum, mean of squares, …) of its parameters, the
last layer's also by the scalars. A device that pulls the model gets them; the change that it pushes is averaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from potluck.model.local_solvers import SolverState
from potluck.model.model_state import TensorEntry, WeightLayout

__all__ = ["add_moment_buffers", "read_moments", "write_moments"]

_PREFIX = "optimizer-state/"  # no buffer of a module has a slash in its name


def add_moment_buffers(layout: WeightLayout, moments: Mapping[str, bool]) -> WeightLayout:
    """The layout with buffers for these moments: by name, whether each is a vector like the weights or a scalar."""
    entries: list[TensorEntry] = []
    bounds, stop = [0], 0
    for layer in range(layout.layer_count):
        low, high = layout.buffer_bounds[layer], layout.buffer_bounds[layer + 1]
        own = [(entry.name, entry.shape) for entry in layout.buffers if low <= entry.start and entry.stop <= high]
        count = layout.param_bounds[layer + 1] - layout.param_bounds[layer]
        own += [(f"{_PREFIX}{name}/{layer}", (count,)) for name, vector in moments.items() if vector and count]
        if layer == layout.layer_count - 1:
            own += [(f"{_PREFIX}{name}", ()) for name, vector in moments.items() if not vector]
        for name, shape in own:
            start, stop = stop, stop + torch.Size(shape).numel()
            entries.append(TensorEntry(name, shape, start, stop))
        bounds.append(stop)
    return replace(layout, buffers=tuple(entries), buffer_bounds=tuple(bounds))


def read_moments(layout: WeightLayout, buffers: Tensor) -> SolverState:
    """The state of an optimizer from the buffers, as copies."""
    parts: dict[str, list[Tensor]] = {}
    for name, entry, _ in _moment_entries(layout):
        parts.setdefault(name, []).append(buffers[entry.start : entry.stop].view(entry.shape))
    return {name: torch.cat(values) if values[0].dim() else values[0].clone() for name, values in parts.items()}


def write_moments(layout: WeightLayout, state: SolverState, buffers: Tensor) -> None:
    """Write the state of an optimizer to its buffers."""
    for name, entry, params in _moment_entries(layout):
        if name in state:
            buffers[entry.start : entry.stop] = state[name][params] if entry.shape else state[name]


def _moment_entries(layout: WeightLayout) -> Iterator[tuple[str, TensorEntry, slice]]:
    """Each buffer of a moment: the moment's name, the buffer's entry, and the parameters that it belongs to."""
    for entry in layout.buffers:
        if entry.name.startswith(_PREFIX):
            name, _, layer = entry.name.removeprefix(_PREFIX).partition("/")
            yield name, entry, layout.layer_slices(int(layer), int(layer))[0] if layer else slice(0)
