"""A model that can be narrowed: its channel sets, a sub-model's cost and entries, and which units it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from potluck.errors import ModelError
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.model_state import TensorEntry, WeightLayout
from potluck.model.submodels.channel_sets import Axis, Channels
from potluck.model.submodels.channel_tracing import ChannelTracer
from potluck.model.submodels.submodel_selection import (
    Indices,
    KeptIndices,
    SubmodelSelection,
    Subsets,
    TensorAxes,
    VectorSelector,
    narrowed_length,
    narrowed_shape,
)

__all__ = [
    "ChannelSet",
    "SlimmableModel",
    "UnitChooser",
    "choose_subsets",
    "leading_units",
    "random_units",
    "rolling_units",
    "trace_slimmable",
    "uniform_counts",
]

UnitChooser = Callable[[int, int], Indices]  # of (size, kept)


@dataclass(frozen=True)
class ChannelSet:
    """Channels that are kept or dropped together, named after the first layer that outputs them.

    `size` counts the units that can be dropped one by one: channels, or groups of `grain` channels.
    """

    name: str
    size: int
    grain: int


@dataclass(frozen=True)
class _LayerMacs:
    """A layer's MACs per sample: `unit` for each connected pair of an output and an input channel."""

    unit: int
    rows: Axis
    columns: Axis

    def macs_for(self, counts: Sequence[int]) -> int:
        columns = narrowed_length(self.columns, counts) if self.columns else 1
        return self.unit * narrowed_length(self.rows, counts) * columns


class SlimmableModel:
    """A traced model and its channel sets; sets of which nothing may be dropped are not listed."""

    def __init__(self, chain: LayerChain) -> None:
        if chain.recording is None:
            raise ModelError(
                f"cannot drop channels of a model that {chain.note}; write its forward without branches on data, or"
                " use a recipe that trains the whole model"
            )
        for name, layer in chain.module.named_modules():
            if is_parametrized(layer):
                raise ModelError(
                    f"cannot drop channels of {name!r}, whose weight is computed by a parametrization; remove it with"
                    " torch.nn.utils.parametrize.remove_parametrizations"
                )
        tracer = ChannelTracer(chain.recording)
        names = tracer.sets.droppable_names()
        order = {label: number for number, label in enumerate(names)}

        def axis(channels: Channels | None) -> Axis:
            return () if channels is None else tracer.sets.final_axis(channels, order)

        self.chain = chain
        self.size_free_calls = tracer.size_free_calls
        self.sets = tuple(ChannelSet(name, *tracer.sets.set_extent(label)) for label, name in names.items())
        self.axes = {
            name: TensorAxes(
                _droppable_axis(axis(channels.rows)), _droppable_axis(axis(channels.columns)), channels.inputs_first
            )
            for name, channels in tracer.tensor_channels.items()
        }
        self._layer_macs = [_LayerMacs(term.unit, axis(term.rows), axis(term.columns)) for term in tracer.mac_terms]
        self._fixed_macs = tracer.fixed_macs
        self.layout = WeightLayout.of_module(
            chain.module, [(layer.parameters, layer.buffers) for layer in chain.layers]
        )
        self._params, self._buffers = (
            VectorSelector(entries, self.axes) for entries in (self.layout.params, self.layout.buffers)
        )
        self.full_macs = self.forward_macs(self.full_counts)

    @property
    def full_counts(self) -> tuple[int, ...]:
        """The counts of the whole model."""
        return tuple(channels.size for channels in self.sets)

    def kept_counts(self, rates: Sequence[float], grid: int = 1) -> tuple[int, ...]:
        """How many units of every set are kept at these dropout rates, at least one.

        With a grid of 8, counts above 8 are multiples of 8: convolutions compute in blocks, and 12 take as long as 16.
        """
        pairs = zip(self.sets, rates, strict=True)
        return tuple(
            _round_to_grid(max(1, round(channels.size * (1 - rate))), channels.size, grid) for channels, rate in pairs
        )

    def forward_macs(self, counts: Sequence[int]) -> int:
        """Forward MACs of one sample."""
        return self._fixed_macs + sum(layer.macs_for(counts) for layer in self._layer_macs)

    def macs_fraction(self, counts: Sequence[int]) -> float:
        """MACs as a fraction of the whole model's."""
        return self.forward_macs(counts) / self.full_macs

    def narrow_layout(self, counts: Sequence[int]) -> WeightLayout:
        """The layout of a network that keeps this many units of every set."""
        return self.layout.with_shapes(lambda entry: narrowed_shape(entry.shape, self._axes_of(entry), counts))

    def _axes_of(self, entry: TensorEntry) -> TensorAxes:
        return self.axes.get(entry.name, TensorAxes())

    def select_units(self, subsets: Subsets) -> SubmodelSelection:
        """The sub-model that keeps these units of every set."""
        pairs = zip(self.sets, subsets, strict=True)
        counts = tuple(channels.size if kept is None else len(kept) for channels, kept in pairs)
        kept = KeptIndices(subsets)
        return SubmodelSelection(
            counts, self._params.select_vector(kept, counts), self._buffers.select_vector(kept, counts)
        )


def trace_slimmable(module: nn.Module, shape: tuple[int, ...], *, dtype: torch.dtype | None = None) -> SlimmableModel:
    """Trace a module whose samples have this shape; ModelError names a layer that does not allow it."""
    return SlimmableModel(trace_layers(module, shape, dtype=dtype))


def _round_to_grid(kept: int, size: int, grid: int) -> int:
    return kept if kept <= grid else min(size, round(kept / grid) * grid)


def _droppable_axis(axis: Axis) -> Axis | None:
    return axis if any(run.set is not None for run in axis) else None


def leading_units(size: int, kept: int) -> Indices:
    """The leading units (HeteroFL, FjORD)."""
    return np.arange(kept)


def rolling_units(round: int) -> UnitChooser:
    """A window that advances by one unit every round and wraps around (FedRolex)."""
    return lambda size, kept: np.sort((np.arange(kept) + round) % size)


def random_units(rng: np.random.Generator) -> UnitChooser:
    """Units drawn uniformly at random (Federated Dropout, filter dropout)."""
    return lambda size, kept: np.sort(rng.permutation(size)[:kept])


def choose_subsets(slimmable: SlimmableModel, counts: Sequence[int], choose: UnitChooser) -> Subsets:
    """Choose this many units of every set; None for a set of which all are kept, without using the chooser."""
    pairs = zip(slimmable.full_counts, counts, strict=True)
    return [None if kept == size else choose(size, kept) for size, kept in pairs]


def uniform_counts(slimmable: SlimmableModel, kept: float, grid: int = 1) -> tuple[int, ...]:
    """The counts that keep this fraction of every set."""
    return slimmable.kept_counts([1 - kept] * len(slimmable.sets), grid)
