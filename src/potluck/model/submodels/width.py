"""A model that can be made narrower: its channel sets, what a narrower one costs and where its numbers lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from potluck.errors import ModelError
from potluck.model.chain import Chain, trace
from potluck.model.state import Layout
from potluck.model.submodels.channels import Axis, Channels
from potluck.model.submodels.operations import Reader
from potluck.model.submodels.selection import Axes, Kept, Plan, Selection, Subsets, length

__all__ = ["ChannelSet", "Width", "width"]


@dataclass(frozen=True)
class ChannelSet:
    """Channels that are kept or dropped as one, named after the first layer that makes them.

    `size` counts what can be dropped one by one: channels, or groups of `grain` channels.
    """

    name: str
    size: int
    grain: int


@dataclass(frozen=True)
class _Product:
    """A layer's MACs for one sample: `unit` for each pair of an output and an input that meet."""

    unit: int
    rows: Axis
    columns: Axis

    def macs(self, counts: Sequence[int]) -> int:
        return self.unit * length(self.rows, counts) * (length(self.columns, counts) if self.columns else 1)


class Width:
    """A traced model and its channel sets; those of which nothing may be dropped are not listed."""

    def __init__(self, chain: Chain) -> None:
        if chain.recording is None:
            raise ModelError(f"cannot leave channels out of a model that {chain.note}")
        reader = Reader(chain.recording)
        names = reader.pool.names()
        order = {label: number for number, label in enumerate(names)}

        def axis(channels: Channels | None) -> Axis:
            return () if channels is None else reader.pool.axis(channels, order)

        self.chain = chain
        self.flattened = tuple(reader.flattened)
        self.sets = tuple(ChannelSet(name, *reader.pool.extent(label)) for label, name in names.items())
        self.axes = {
            name: Axes(_cuttable(axis(grip.rows)), _cuttable(axis(grip.columns))) for name, grip in reader.grips.items()
        }
        self._products = [_Product(made.unit, axis(made.rows), axis(made.columns)) for made in reader.products]
        self._fixed_macs = reader.fixed_macs
        self.layout = Layout.of(chain.module, [(layer.parameters, layer.buffers) for layer in chain.layers])
        self._params, self._buffers = (Plan(part, self.axes) for part in (self.layout.params, self.layout.buffers))
        self.full_macs = self.macs(self.full)

    @property
    def full(self) -> tuple[int, ...]:
        """The counts of the whole model."""
        return tuple(part.size for part in self.sets)

    def counts(self, rates: Sequence[float], grid: int = 1) -> tuple[int, ...]:
        """How many units of every set are kept at these rates of dropping, at least one.

        With a grid of 8 they are multiples of 8 (above 8): convolutions compute in blocks, and 12 take as long as 16.
        """
        pairs = zip(self.sets, rates, strict=True)
        return tuple(_on_grid(max(1, round(part.size * (1 - rate))), part.size, grid) for part, rate in pairs)

    def macs(self, counts: Sequence[int]) -> int:
        """Forward MACs of one sample."""
        return self._fixed_macs + sum(product.macs(counts) for product in self._products)

    def share(self, counts: Sequence[int]) -> float:
        """MACs as a share of the whole model's."""
        return self.macs(counts) / self.full_macs

    def select(self, subsets: Subsets) -> Selection:
        """Where the numbers of the sub-model lie that keeps these units of every set."""
        pairs = zip(self.sets, subsets, strict=True)
        counts = tuple(part.size if kept is None else len(kept) for part, kept in pairs)
        kept = Kept(subsets)
        return Selection(counts, self._params.half(kept, counts), self._buffers.half(kept, counts))


def width(module: nn.Module, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32) -> Width:
    """The width of a module that takes samples of this shape; ModelError names the layer that stands in the way."""
    return Width(trace(module, shape, dtype=dtype))


def _on_grid(kept: int, size: int, grid: int) -> int:
    return kept if kept <= grid else min(size, round(kept / grid) * grid)


def _cuttable(axis: Axis) -> Axis | None:
    return axis if any(run.set is not None for run in axis) else None
