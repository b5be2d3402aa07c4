"""What every operation does to channels: makes new ones, hands them on, joins them, lays them side by side.

Only layers that mix channels (plain convolutions, linear layers) make new sets; what lies between two of them works
channel by channel, so leaving a channel out there is the same as hiding it from the next layer that mixes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from potluck.errors import ModelError
from potluck.model.costs import tensors
from potluck.model.rehearsal import BATCHES
from potluck.model.submodels.channels import Channels, Pool
from potluck.model.submodels.vocabulary import (
    CHANNELWISE,
    CHANNELWISE_CALLS,
    JOINS,
    MIXES,
    REDUCTIONS,
    RESHAPES,
    SIDE_BY_SIDE,
)
from potluck.model.tracing import Recording

__all__ = ["Grip", "Product", "Reader"]


@dataclass(frozen=True, slots=True)
class Grip:
    """What the axes of one parameter or buffer are made of; None is an axis that stays whole."""

    rows: Channels
    columns: Channels | None = None


@dataclass(frozen=True, slots=True)
class Product:
    """A layer's MACs for one sample: `unit` for each pair of an output and an input that meet."""

    unit: int
    rows: Channels
    columns: Channels | None


class Reader:
    """Reads a recorded forward from input to output and writes down which channels every tensor is made of."""

    def __init__(self, recording: Recording) -> None:
        self.pool = Pool()
        self.grips: dict[str, Grip] = {}
        self.products: list[Product] = []
        self.fixed_macs = 0
        self.flattened: list[str] = []  # nodes that flatten, whatever size their code may say
        self._recording = recording
        self._channels: dict[fx.Node, Channels] = {}
        for node in recording.graph.nodes:
            self._read(node)

    def _read(self, node: fx.Node) -> None:
        if node.op == "output":
            self.pool.pin(piece for source in node.all_input_nodes for piece in self._channels.get(source, ()))
        elif node.op != "get_attr" and isinstance(self._value(node), torch.Tensor):
            self._channels[node] = self._made(node)
        elif any(True for _ in tensors(self._value(node))) and any(map(self._of, node.all_input_nodes)):
            self._refuse(node)

    def _made(self, node: fx.Node) -> Channels:
        if node.op == "placeholder":
            return self._opaque(node)
        if node.op == "call_module":
            return self._module(node)
        name = _call_name(node)
        for calls, read in CALLS:
            if name in calls:
                return read(self, node)
        return self._opaque(node)

    def _module(self, node: fx.Node) -> Channels:
        module = self._recording.bones.get_submodule(str(node.target))
        for kind, read in MODULES:
            if isinstance(module, kind):
                return read(self, node, module)
        return self._opaque(node)

    # --- layers ----------------------------------------------------------------------------------------------------

    def _conv(self, node: fx.Node, conv: _ConvNd) -> Channels:
        if isinstance(conv, _ConvTransposeNd) or conv.padding_mode not in ("zeros", "circular", "reflect", "replicate"):
            self._refuse(node)
        source = self._source(node)
        return self._mixed(node, source, conv.out_channels) if conv.groups == 1 else self._grouped(node, source, conv)

    def _linear(self, node: fx.Node, linear: nn.Linear) -> Channels:
        if self._value(node).dim() != 2:
            self._refuse(node, "a linear layer on the last of several axes")
        return self._mixed(node, self._source(node), linear.out_features)

    def _mixed(self, node: fx.Node, source: Channels, size: int) -> Channels:
        known = self.grips.get(f"{node.target}.weight")
        if known is not None:  # a layer that is called again: the same channels must go
            assert known.columns is not None, "only layers that mix come here"
            self.pool.join(known.columns, source)
            made = known.rows
        else:
            made = self.pool.new(str(node.target), size)
        self._hold(node, "weight", made, source)
        self._hold(node, "bias", made)
        self._count(node, made, source, size * self.pool.features(source))
        return made

    def _grouped(self, node: fx.Node, source: Channels, conv: _ConvNd) -> Channels:
        """Groups go whole, each with its inputs and outputs; a depthwise convolution has one channel in each."""
        inputs, outputs = conv.in_channels // conv.groups, conv.out_channels // conv.groups
        self.pool.coarsen(source, inputs)
        made = self.pool.multiply(source, outputs, inputs)
        if made is None:
            self.pool.pin(source)
            made = self.pool.new(str(node.target), conv.out_channels, pinned=True)
        self._hold(node, "weight", made)
        self._hold(node, "bias", made)
        self._count(node, made, None, conv.out_channels)
        return made

    def _norm(self, node: fx.Node, norm: _NormBase) -> Channels:
        source = self._source(node)
        for name in ("weight", "bias", "running_mean", "running_var"):
            self._hold(node, name, source)
        return source

    def _group_norm(self, node: fx.Node, norm: nn.GroupNorm) -> Channels:
        source = self._source(node)
        self.pool.coarsen(source, norm.num_channels // norm.num_groups)
        if not norm.affine:  # nothing would tell it how many groups are left
            self.pool.pin(source)
        self._hold(node, "weight", source)
        self._hold(node, "bias", source)
        return source

    def _prelu(self, node: fx.Node, prelu: nn.PReLU) -> Channels:
        source = self._source(node)
        if prelu.num_parameters > 1:
            self._hold(node, "weight", source)
        return source

    # --- what lies between them ------------------------------------------------------------------------------------

    def _handed_on(self, node: fx.Node, module: nn.Module | None = None) -> Channels:
        return self._source(node)

    def _joined(self, node: fx.Node) -> Channels:
        joined = [source for source in node.all_input_nodes if not _is_number(self._value(source))]
        known = [source in self._channels and self._value(source).dim() == self._value(node).dim() for source in joined]
        if not joined or not all(known):
            return self._opaque(node)
        made = self._channels[joined[0]]
        for source in joined[1:]:
            made = self.pool.join(made, self._channels[source])
        return made

    def _side_by_side(self, node: fx.Node) -> Channels:
        axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis", 0))
        if axis not in (1, 1 - self._value(node).dim()):
            return self._opaque(node)
        return tuple(piece for source in node.all_input_nodes for piece in self._channels[source])

    def _reshaped(self, node: fx.Node, module: nn.Module | None = None) -> Channels:
        before, after = self._value(node.all_input_nodes[0]).shape, self._value(node).shape
        source = self._source(node)
        if after[:2] == before[:2]:
            return source
        if len(after) != 2 or after[0] != before[0]:
            return self._opaque(node)
        self.flattened.append(node.name)
        made = self.pool.multiply(source, math.prod(before[2:]))
        assert made is not None
        return made

    def _reduced(self, node: fx.Node) -> Channels:
        axes = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        listed = [axes] if isinstance(axes, int) else axes
        if not isinstance(listed, list | tuple):
            return self._opaque(node)
        dims = self._value(node.all_input_nodes[0]).dim()
        return self._source(node) if all(int(axis) % dims > 1 for axis in listed) else self._opaque(node)

    def _pinned(self, node: fx.Node, module: nn.Module | None = None) -> Channels:
        self.pool.pin(self._source(node))
        return self._source(node)

    def _opaque(self, node: fx.Node) -> Channels:
        """Anything may happen to what is never dropped; to all else only what we understand."""
        if any(self.pool.droppable(self._of(source)) for source in node.all_input_nodes):
            self._refuse(node)
        shape = self._value(node).shape
        self.fixed_macs += self._macs(node)
        return self.pool.new(node.name, shape[1] if len(shape) > 1 else 1, pinned=True)

    # --- bookkeeping -----------------------------------------------------------------------------------------------

    def _hold(self, node: fx.Node, name: str, rows: Channels, columns: Channels | None = None) -> None:
        if getattr(self._recording.bones.get_submodule(str(node.target)), name, None) is not None:
            self.grips[f"{node.target}.{name}"] = Grip(rows, columns)

    def _count(self, node: fx.Node, rows: Channels, columns: Channels | None, pairs: int) -> None:
        self.products.append(Product(self._macs(node) // pairs, rows, columns))

    def _macs(self, node: fx.Node) -> int:
        return self._recording.facts[node].flops // (2 * BATCHES[0])

    def _source(self, node: fx.Node) -> Channels:
        return self._channels[node.all_input_nodes[0]]

    def _of(self, node: fx.Node) -> Channels:
        return self._channels.get(node, ())

    def _value(self, node: fx.Node) -> Any:
        fact = self._recording.facts.get(node)
        return None if fact is None else fact.value

    def _refuse(self, node: fx.Node, what: str = "") -> None:
        if not what and node.op == "call_module":
            what = type(self._recording.bones.get_submodule(str(node.target))).__name__
        where = str(node.target) if node.op == "call_module" else f"node {node.name}"
        raise ModelError(
            f"cannot leave channels out before {what or _call_name(node)!r} ({where}); "
            "train the whole model (submodel = 'whole') or use layers that work channel by channel there"
        )


def _call_name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", node.target))


def _is_number(value: object) -> bool:
    return not isinstance(value, torch.Tensor) or value.numel() == 1


ModuleReading = Callable[[Reader, fx.Node, Any], Channels]

MODULES: tuple[tuple[type[nn.Module] | tuple[type[nn.Module], ...], ModuleReading], ...] = (
    (_ConvNd, Reader._conv),
    (nn.Linear, Reader._linear),
    (_NormBase, Reader._norm),
    (nn.GroupNorm, Reader._group_norm),
    (nn.PReLU, Reader._prelu),
    (nn.Flatten, Reader._reshaped),
    ((nn.Softmax, nn.LogSoftmax), Reader._pinned),
    (CHANNELWISE, Reader._handed_on),
)
CALLS: tuple[tuple[frozenset[str], Callable[[Reader, fx.Node], Channels]], ...] = (
    (CHANNELWISE_CALLS, Reader._handed_on),
    (JOINS, Reader._joined),
    (SIDE_BY_SIDE, Reader._side_by_side),
    (RESHAPES, Reader._reshaped),
    (REDUCTIONS, Reader._reduced),
    (MIXES, Reader._pinned),
)
