"""Traces what every operation does to channels: outputs new ones, passes them on, adds or concatenates them.

Only layers that mix channels (plain convolutions, linear layers) output new sets; what lies between two of them works
channel by channel, so dropping a channel there is the same as hiding it from the next layer that mixes.
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
from potluck.model.flop_counter import FLOPS_PER_MAC, iter_tensors
from potluck.model.graph_recording import GraphRecording
from potluck.model.meta_interpreter import PROBE_BATCH_SIZES
from potluck.model.submodels.channel_sets import Channels, ChannelUnionFind

__all__ = ["ChannelTracer", "MacTerm", "TensorChannels"]

# What is known to treat every channel alike, and calls by what they do to channels.
CHANNELWISE_LAYERS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid,
    nn.Hardtanh, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Softplus, nn.Softsign, nn.Identity, nn.Dropout, nn.Dropout1d,
    nn.Dropout2d, nn.Dropout3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d, nn.LPPool2d, nn.ZeroPad2d, nn.ConstantPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d,
    nn.Upsample,
)  # fmt: skip
CHANNELWISE_CALLS = frozenset([
    "relu", "relu_", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "mish", "hardswish", "hardsigmoid",
    "hardtanh", "tanh", "sigmoid", "softplus", "dropout", "dropout2d", "max_pool1d", "max_pool2d", "max_pool3d",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "adaptive_max_pool1d", "adaptive_max_pool2d", "interpolate", "contiguous", "clone", "detach", "float", "double",
    "neg", "abs", "square", "sqrt", "clamp",
])  # fmt: skip
ELEMENTWISE_CALLS = frozenset([
    "add", "add_", "iadd", "sub", "sub_", "isub", "mul", "mul_", "imul", "truediv", "div", "div_", "itruediv",
])  # fmt: skip
CONCAT_CALLS = frozenset(["cat", "concat", "concatenate"])
RESHAPE_CALLS = frozenset(["flatten", "view", "reshape", "squeeze", "unsqueeze"])
REDUCTION_CALLS = frozenset(["mean", "sum", "amax", "amin"])
SOFTMAX_CALLS = frozenset(["softmax", "log_softmax"])


@dataclass(frozen=True, slots=True)
class TensorChannels:
    """The channels along the axes of one parameter or buffer; None is an axis that is never narrowed."""

    rows: Channels
    columns: Channels | None = None


@dataclass(frozen=True, slots=True)
class MacTerm:
    """A layer's MACs per sample: `unit` for each connected pair of an output and an input channel."""

    unit: int
    rows: Channels
    columns: Channels | None


class ChannelTracer:
    """Follows a recorded forward from input to output and records which channels every tensor has."""

    def __init__(self, recording: GraphRecording) -> None:
        self.sets = ChannelUnionFind()
        self.tensor_channels: dict[str, TensorChannels] = {}
        self.mac_terms: list[MacTerm] = []
        self.fixed_macs = 0
        self.flattened: list[str] = []  # nodes that flatten, even if their code names sizes
        self._recording = recording
        self._channels: dict[fx.Node, Channels] = {}
        for node in recording.graph.nodes:
            self._trace_node(node)

    def _trace_node(self, node: fx.Node) -> None:
        if node.op == "output":
            self.sets.pin(span for source in node.all_input_nodes for span in self._channels.get(source, ()))
        elif node.op != "get_attr" and isinstance(self._traced_value(node), torch.Tensor):
            self._channels[node] = self._output_channels(node)
        elif any(True for _ in iter_tensors(self._traced_value(node))) and any(
            map(self._known_channels, node.all_input_nodes)
        ):
            self._raise_unsupported(node)

    def _output_channels(self, node: fx.Node) -> Channels:
        if node.op == "placeholder":
            return self._trace_opaque(node)
        if node.op == "call_module":
            return self._trace_module(node)
        name = _call_name(node)
        for calls, trace in CALL_TRACERS:
            if name in calls:
                return trace(self, node)
        return self._trace_opaque(node)

    def _trace_module(self, node: fx.Node) -> Channels:
        module = self._recording.meta_module.get_submodule(str(node.target))
        for kind, trace in MODULE_TRACERS:
            if isinstance(module, kind):
                return trace(self, node, module)
        return self._trace_opaque(node)

    # --- layers ----------------------------------------------------------------------------------------------------

    def _trace_conv(self, node: fx.Node, conv: _ConvNd) -> Channels:
        if isinstance(conv, _ConvTransposeNd) or conv.padding_mode not in ("zeros", "circular", "reflect", "replicate"):
            self._raise_unsupported(node)
        source = self._input_channels(node)
        if conv.groups > 1:
            return self._trace_grouped_conv(node, source, conv)
        return self._trace_mixing(node, source, conv.out_channels)

    def _trace_linear(self, node: fx.Node, linear: nn.Linear) -> Channels:
        if self._traced_value(node).dim() != 2:
            self._raise_unsupported(node, "a linear layer on the last of several axes")
        return self._trace_mixing(node, self._input_channels(node), linear.out_features)

    def _trace_mixing(self, node: fx.Node, source: Channels, size: int) -> Channels:
        known = self.tensor_channels.get(f"{node.target}.weight")
        if known is not None:  # a layer that is called again: the same channels must be dropped
            assert known.columns is not None, "only layers that mix channels are traced here"
            self.sets.join_sets(known.columns, source)
            output = known.rows
        else:
            output = self.sets.add_set(str(node.target), size)
        self._register_tensor(node, "weight", output, source)
        self._register_tensor(node, "bias", output)
        self._count_macs(node, output, source, size * self.sets.axis_length(source))
        return output

    def _trace_grouped_conv(self, node: fx.Node, source: Channels, conv: _ConvNd) -> Channels:
        """Groups are dropped as a whole, with inputs and outputs; in a depthwise convolution each is one channel."""
        inputs, outputs = conv.in_channels // conv.groups, conv.out_channels // conv.groups
        self.sets.coarsen(source, inputs)
        output = self.sets.multiply_features(source, outputs, inputs)
        if output is None:
            self.sets.pin(source)
            output = self.sets.add_set(str(node.target), conv.out_channels, pinned=True)
        self._register_tensor(node, "weight", output)
        self._register_tensor(node, "bias", output)
        self._count_macs(node, output, None, conv.out_channels)
        return output

    def _trace_norm(self, node: fx.Node, norm: _NormBase) -> Channels:
        source = self._input_channels(node)
        for name in ("weight", "bias", "running_mean", "running_var"):
            self._register_tensor(node, name, source)
        return source

    def _trace_group_norm(self, node: fx.Node, norm: nn.GroupNorm) -> Channels:
        source = self._input_channels(node)
        self.sets.coarsen(source, norm.num_channels // norm.num_groups)
        if not norm.affine:  # it has no weight from which to derive the number of groups left
            self.sets.pin(source)
        self._register_tensor(node, "weight", source)
        self._register_tensor(node, "bias", source)
        return source

    def _trace_prelu(self, node: fx.Node, prelu: nn.PReLU) -> Channels:
        source = self._input_channels(node)
        if prelu.num_parameters > 1:
            self._register_tensor(node, "weight", source)
        return source

    # --- between layers --------------------------------------------------------------------------------------------

    def _pass_through(self, node: fx.Node, module: nn.Module | None = None) -> Channels:
        return self._input_channels(node)

    def _trace_elementwise(self, node: fx.Node) -> Channels:
        joined = [source for source in node.all_input_nodes if not _is_scalar(self._traced_value(source))]
        known = [
            source in self._channels and self._traced_value(source).dim() == self._traced_value(node).dim()
            for source in joined
        ]
        if not joined or not all(known):
            return self._trace_opaque(node)
        output = self._channels[joined[0]]
        for source in joined[1:]:
            output = self.sets.join_sets(output, self._channels[source])
        return output

    def _trace_concat(self, node: fx.Node) -> Channels:
        axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis", 0))
        if axis not in (1, 1 - self._traced_value(node).dim()):
            return self._trace_opaque(node)
        return tuple(span for source in node.all_input_nodes for span in self._channels[source])

    def _trace_reshape(self, node: fx.Node, module: nn.Module | None = None) -> Channels:
        before, after = self._traced_value(node.all_input_nodes[0]).shape, self._traced_value(node).shape
        source = self._input_channels(node)
        if after[:2] == before[:2]:
            return source
        if len(after) != 2 or after[0] != before[0]:
            return self._trace_opaque(node)
        self.flattened.append(node.name)
        output = self.sets.multiply_features(source, math.prod(before[2:]))
        assert output is not None
        return output

    def _trace_reduction(self, node: fx.Node) -> Channels:
        axes = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        listed = [axes] if isinstance(axes, int) else axes
        if not isinstance(listed, list | tuple):
            return self._trace_opaque(node)
        dims = self._traced_value(node.all_input_nodes[0]).dim()
        return self._input_channels(node) if all(int(axis) % dims > 1 for axis in listed) else self._trace_opaque(node)

    def _pin_channels(self, node: fx.Node, module: nn.Module | None = None) -> Channels:
        self.sets.pin(self._input_channels(node))
        return self._input_channels(node)

    def _trace_opaque(self, node: fx.Node) -> Channels:
        """Unknown operations are allowed only on channels that are never dropped."""
        if any(self.sets.is_droppable(self._known_channels(source)) for source in node.all_input_nodes):
            self._raise_unsupported(node)
        shape = self._traced_value(node).shape
        self.fixed_macs += self._node_macs(node)
        return self.sets.add_set(node.name, shape[1] if len(shape) > 1 else 1, pinned=True)

    # --- bookkeeping -----------------------------------------------------------------------------------------------

    def _register_tensor(self, node: fx.Node, name: str, rows: Channels, columns: Channels | None = None) -> None:
        if getattr(self._recording.meta_module.get_submodule(str(node.target)), name, None) is not None:
            self.tensor_channels[f"{node.target}.{name}"] = TensorChannels(rows, columns)

    def _count_macs(self, node: fx.Node, rows: Channels, columns: Channels | None, pairs: int) -> None:
        self.mac_terms.append(MacTerm(self._node_macs(node) // pairs, rows, columns))

    def _node_macs(self, node: fx.Node) -> int:
        return self._recording.facts[node].flops // (FLOPS_PER_MAC * PROBE_BATCH_SIZES[0])

    def _input_channels(self, node: fx.Node) -> Channels:
        return self._channels[node.all_input_nodes[0]]

    def _known_channels(self, node: fx.Node) -> Channels:
        return self._channels.get(node, ())

    def _traced_value(self, node: fx.Node) -> Any:
        fact = self._recording.facts.get(node)
        return None if fact is None else fact.value

    def _raise_unsupported(self, node: fx.Node, what: str = "") -> None:
        if not what and node.op == "call_module":
            what = type(self._recording.meta_module.get_submodule(str(node.target))).__name__
        where = str(node.target) if node.op == "call_module" else f"node {node.name}"
        raise ModelError(
            f"cannot drop channels before {what or _call_name(node)!r} ({where}); "
            "train the whole model (submodel = 'whole') or use layers that work channel by channel there"
        )


def _call_name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", node.target))


def _is_scalar(value: object) -> bool:
    return not isinstance(value, torch.Tensor) or value.numel() == 1


ModuleTracer = Callable[[ChannelTracer, fx.Node, Any], Channels]

MODULE_TRACERS: tuple[tuple[type[nn.Module] | tuple[type[nn.Module], ...], ModuleTracer], ...] = (
    (_ConvNd, ChannelTracer._trace_conv),
    (nn.Linear, ChannelTracer._trace_linear),
    (_NormBase, ChannelTracer._trace_norm),
    (nn.GroupNorm, ChannelTracer._trace_group_norm),
    (nn.PReLU, ChannelTracer._trace_prelu),
    (nn.Flatten, ChannelTracer._trace_reshape),
    ((nn.Softmax, nn.LogSoftmax), ChannelTracer._pin_channels),
    (CHANNELWISE_LAYERS, ChannelTracer._pass_through),
)
CALL_TRACERS: tuple[tuple[frozenset[str], Callable[[ChannelTracer, fx.Node], Channels]], ...] = (
    (CHANNELWISE_CALLS, ChannelTracer._pass_through),
    (ELEMENTWISE_CALLS, ChannelTracer._trace_elementwise),
    (CONCAT_CALLS, ChannelTracer._trace_concat),
    (RESHAPE_CALLS, ChannelTracer._trace_reshape),
    (REDUCTION_CALLS, ChannelTracer._trace_reduction),
    (SOFTMAX_CALLS, ChannelTracer._pin_channels),
)
