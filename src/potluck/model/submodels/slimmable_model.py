"""A model that can be made narrower: its channel sets, what a narrower one costs and where its numbers lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from potluck.errors import ModelError
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.model_state import WeightLayout
from potluck.model.submodels.channel_sets import Axis, Channels
from potluck.model.submodels.channel_tracing import ChannelTracer
from potluck.model.submodels.submodel_selection import (
    KeptIndices,
    SubmodelSelection,
    Subsets,
    TensorAxes,
    VectorSelector,
    narrowed_length,
)

__all__ = ["ChannelSet", "SlimmableModel", "trace_slimmable"]


@dataclass(frozen=True)
class ChannelSet:
    """Channels that are kept or dropped as one, named after the first layer that makes them.

    `size` counts what can be dropped one by one: channels, or groups of `grain` channels.
    """

    name: str
    size: int
    grain: int


@dataclass(frozen=True)
class _LayerMacs:
    """A layer's MACs for one sample: `unit` for each pair of an output and an input that meet."""

    unit: int
    rows: Axis
    columns: Axis

    def macs_for(self, counts: Sequence[int]) -> int:
        return (
            self.unit
            * narrowed_length(self.rows, counts)
            * (narrowed_length(self.columns, counts) if self.columns else 1)
        )


class SlimmableModel:
    """A traced model and its channel sets; those of which nothing may be dropped are not listed."""

    def __init__(self, chain: LayerChain) -> None:
        if chain.recording is None:
            raise ModelError(f"cannot leave channels out of a model that {chain.note}")
        reader = ChannelTracer(chain.recording)
        names = reader.sets.droppable_names()
        order = {label: number for number, label in enumerate(names)}

        def axis(channels: Channels | None) -> Axis:
            return () if channels is None else reader.sets.final_axis(channels, order)

        self.chain = chain
        self.flattened = tuple(reader.flattened)
        self.sets = tuple(ChannelSet(name, *reader.sets.set_extent(label)) for label, name in names.items())
        self.axes = {
            name: TensorAxes(_cuttable_axis(axis(grip.rows)), _cuttable_axis(axis(grip.columns)))
            for name, grip in reader.tensor_channels.items()
        }
        self._layer_macs = [_LayerMacs(made.unit, axis(made.rows), axis(made.columns)) for made in reader.mac_terms]
        self._fixed_macs = reader.fixed_macs
        self.layout = WeightLayout.of_module(
            chain.module, [(layer.parameters, layer.buffers) for layer in chain.layers]
        )
        self._params, self._buffers = (
            VectorSelector(part, self.axes) for part in (self.layout.params, self.layout.buffers)
        )
        self.full_macs = self.forward_macs(self.full_counts)

    @property
    def full_counts(self) -> tuple[int, ...]:
        """The counts of the whole model."""
        return tuple(part.size for part in self.sets)

    def kept_counts(self, rates: Sequence[float], grid: int = 1) -> tuple[int, ...]:
        """How many units of every set are kept at these rates of dropping, at least one.

        With a grid of 8 they are multiples of 8 (above 8): convolutions compute in blocks, and 12 take as long as 16.
        """
        pairs = zip(self.sets, rates, strict=True)
        return tuple(_round_to_grid(max(1, round(part.size * (1 - rate))), part.size, grid) for part, rate in pairs)

    def forward_macs(self, counts: Sequence[int]) -> int:
        """Forward MACs of one sample."""
        return self._fixed_macs + sum(product.macs_for(counts) for product in self._layer_macs)

    def macs_fraction(self, counts: Sequence[int]) -> float:
        """MACs as a share of the whole model's."""
        return self.forward_macs(counts) / self.full_macs

    def select_units(self, subsets: Subsets) -> SubmodelSelection:
        """Where the numbers of the sub-model lie that keeps these units of every set."""
        pairs = zip(self.sets, subsets, strict=True)
        counts = tuple(part.size if kept is None else len(kept) for part, kept in pairs)
        kept = KeptIndices(subsets)
        return SubmodelSelection(
            counts, self._params.select_vector(kept, counts), self._buffers.select_vector(kept, counts)
        )


def trace_slimmable(module: nn.Module, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32) -> SlimmableModel:
    """The width of a module that takes samples of this shape; ModelError names the layer that stands in the way."""
    return SlimmableModel(trace_layers(module, shape, dtype=dtype))


def _round_to_grid(kept: int, size: int, grid: int) -> int:
    return kept if kept <= grid else min(size, round(kept / grid) * grid)


def _cuttable_axis(axis: Axis) -> Axis | None:
    return axis if any(run.set is not None for run in axis) else None
