"""Traces what every operation does to channels: outputs new ones, passes them on, adds or concatenates them.

Only layers that mix channels (plain convolutions, linear layers, attention by its heads) output new sets; what lies
between two of them works channel by channel, so dropping a channel there is the same as hiding it from the next layer
that mixes. Embeddings and layer norms keep all channels: the residual stream of a transformer is never narrowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from potluck.model.execution_graph import is_model_output
from potluck.model.flop_counter import iter_tensors
from potluck.model.graph_recording import GraphRecording
from potluck.model.submodels import attention_tracing
from potluck.model.submodels.channel_flow import ChannelFlow, ChannelLayout, call_name, is_transposed_linear
from potluck.model.submodels.channel_operations import (
    CHANNELWISE_CALLS,
    CHANNELWISE_LAYERS,
    CONCAT_CALLS,
    ELEMENT_CALLS,
    ELEMENT_LAYERS,
    ELEMENTWISE_CALLS,
    PERMUTATION_CALLS,
    REDUCTION_CALLS,
    RESHAPE_CALLS,
    SOFTMAX_CALLS,
)
from potluck.model.submodels.channel_sets import Channels

__all__ = ["ChannelTracer"]


class ChannelTracer(ChannelFlow):
    """Follows a recorded forward from input to output and records which channels every tensor has."""

    def __init__(self, recording: GraphRecording) -> None:
        super().__init__(recording)
        for node in recording.graph.nodes:
            self._trace_node(node)

    def _trace_node(self, node: fx.Node) -> None:
        if node.op == "output" or is_model_output(node):
            self.pin_sources(node)
        elif node.op != "get_attr" and isinstance(self.traced_value(node), torch.Tensor):
            self.layouts[node] = self._output_layout(node)
        elif any(True for _ in iter_tensors(self.traced_value(node))):
            self._trace_tuple(node)

    def _output_layout(self, node: fx.Node) -> ChannelLayout:
        if node.op == "call_module":
            return self._trace_module(node)
        for calls, trace in CALL_TRACERS:
            if node.op != "placeholder" and call_name(node) in calls:
                return trace(self, node)
        return self.trace_opaque(node)

    def _trace_module(self, node: fx.Node) -> ChannelLayout:
        module = self.recording.meta_module.get_submodule(str(node.target))
        for kind, trace in MODULE_TRACERS:
            if isinstance(module, kind):
                return trace(self, node, module)
        if is_transposed_linear(module):
            return self._trace_linear(node, module)
        return self.input_layout(node) if _is_activation(module) else self.trace_opaque(node)

    def _trace_tuple(self, node: fx.Node) -> None:
        module = self.recording.meta_module.get_submodule(str(node.target)) if node.op == "call_module" else None
        layouts = None
        if isinstance(module, nn.MultiheadAttention):
            layouts = attention_tracing.trace_multihead_attention(self, node, module)
        elif call_name(node) in attention_tracing.CHUNK_CALLS and node.all_input_nodes[0] in self.layouts:
            layouts = attention_tracing.trace_chunks(self, node)
        elif call_name(node) == "unbind" and node.args[1:] in ((), (0,)) and node.kwargs in ({}, {"dim": 0}):
            taken = attention_tracing.take_from_stack(self.input_layout(node))
            layouts = None if taken is None else (taken,) * len(self.traced_value(node))
        if layouts is not None:
            self.layouts_in_tuple[node] = layouts
        elif isinstance(node.target, type):  # the outputs of a model, as one object
            self.pin_sources(node)
        elif any(map(self.is_droppable, node.all_input_nodes)):
            self.raise_unsupported(node)

    # --- layers ----------------------------------------------------------------------------------------------------

    def _trace_conv(self, node: fx.Node, conv: _ConvNd) -> ChannelLayout:
        if isinstance(conv, _ConvTransposeNd) or conv.padding_mode not in ("zeros", "circular", "reflect", "replicate"):
            self.raise_unsupported(node)
        source = self.input_channels(node)
        if conv.groups > 1:
            return ChannelLayout(self._trace_grouped_conv(node, source, conv))
        return ChannelLayout(self._trace_mixing(node, source, [conv.out_channels]))

    def _trace_linear(self, node: fx.Node, linear: nn.Module) -> ChannelLayout:
        dims = self.traced_value(node).dim()
        source = self.channels_along(node.all_input_nodes[0], dims - 1)
        if source is None:
            self.raise_unsupported(node, "a linear layer on the last of several axes")
        return ChannelLayout(self._trace_mixing(node, source, attention_tracing.fused_parts(self, node)), dims - 1)

    def _trace_mixing(self, node: fx.Node, source: Channels, sizes: list[int]) -> Channels:
        weight = self.recording.meta_module.get_submodule(str(node.target)).weight
        name = self.parameter_names.get(id(weight), f"{node.target}.weight")
        known = self.tensor_channels.get(name)
        if known is not None and known.columns is not None:  # a weight is used again: the same channels are dropped
            output, inputs = (known.columns, known.rows) if known.inputs_first else (known.rows, known.columns)
            self.sets.join_sets(inputs, source)
        else:
            output = tuple(span for size in sizes for span in self.sets.add_set(str(node.target), size))
            if name != f"{node.target}.weight":  # something else uses the weight, such as an embedding: none is dropped
                self.sets.pin((*source, *output))
        if is_transposed_linear(self.recording.meta_module.get_submodule(str(node.target))):
            self.register_tensor(node, "weight", source, output, inputs_first=True)
        else:
            self.register_tensor(node, "weight", output, source)
        self.register_tensor(node, "bias", output)
        self.count_macs(node, output, source, sum(sizes) * self.sets.axis_length(source))
        return output

    def _trace_grouped_conv(self, node: fx.Node, source: Channels, conv: _ConvNd) -> Channels:
        """Groups are dropped as a whole, with inputs and outputs; in a depthwise convolution each is one channel."""
        inputs, outputs = conv.in_channels // conv.groups, conv.out_channels // conv.groups
        self.sets.coarsen(source, inputs)
        output = self.sets.multiply_features(source, outputs, inputs)
        if output is None:
            self.sets.pin(source)
            output = self.sets.add_set(str(node.target), conv.out_channels, pinned=True)
        self.register_tensor(node, "weight", output)
        self.register_tensor(node, "bias", output)
        self.count_macs(node, output, None, conv.out_channels)
        return output

    def _trace_norm(self, node: fx.Node, norm: _NormBase) -> ChannelLayout:
        source = self.input_channels(node)
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_tensor(node, name, source)
        return ChannelLayout(source)

    def _trace_group_norm(self, node: fx.Node, norm: nn.GroupNorm) -> ChannelLayout:
        source = self.input_channels(node)
        self.sets.coarsen(source, norm.num_channels // norm.num_groups)
        if not norm.affine:  # it has no weight from which to derive the number of groups left
            self.sets.pin(source)
        self.register_tensor(node, "weight", source)
        self.register_tensor(node, "bias", source)
        return ChannelLayout(source)

    def _trace_prelu(self, node: fx.Node, prelu: nn.PReLU) -> ChannelLayout:
        if prelu.num_parameters == 1:
            return self.input_layout(node)
        source = self.input_channels(node)
        self.register_tensor(node, "weight", source)
        return ChannelLayout(source)

    def _trace_last_axis(self, node: fx.Node, module: nn.Module) -> ChannelLayout:
        """Embeddings and layer norms: what they output has all its channels along the last axis."""
        source = node.all_input_nodes[0]
        if self.is_droppable(source) and self.layouts[source].axis == self.traced_value(source).dim() - 1:
            self.pin_sources(node)
        return self.trace_opaque(node, axis=-1)

    # --- between layers --------------------------------------------------------------------------------------------

    def _pass_through(self, node: fx.Node, module: nn.Module | None = None) -> ChannelLayout:
        return self.input_layout(node)

    def _pass_channels(self, node: fx.Node, module: nn.Module | None = None) -> ChannelLayout:
        return ChannelLayout(self.input_channels(node))

    def _trace_elementwise(self, node: fx.Node) -> ChannelLayout:
        """All operands have the same channels; one that has none along that axis is broadcast."""
        operands = [source for source in node.all_input_nodes if not _is_scalar(self.traced_value(source))]
        known = [source for source in operands if source in self.layouts]
        if not known:
            return self.trace_opaque(node)
        first = max(known, key=lambda source: (self.is_droppable(source), self._axis_length(source)))
        layout, dims = self.layouts[first], self.traced_value(node).dim()
        if self.traced_value(first).dim() != dims:
            return self.trace_opaque(node)
        for source in operands:
            if source is not first and _side_from_end(self.traced_value(source), layout.axis - dims) > 1:
                self._join_operands(node, first, source)
        return layout

    def _join_operands(self, node: fx.Node, first: fx.Node, second: fx.Node) -> None:
        one, other = self.layouts[first], self.layouts.get(second)
        shift = self.traced_value(first).dim() - self.traced_value(second).dim()
        if other is not None and (one.head_width, one.axis) == (other.head_width, other.axis + shift):
            self.sets.join_sets(one.channels, other.channels)
        elif self.is_droppable(second):
            self.raise_unsupported(node)
        else:
            self.sets.pin(one.channels)

    def _axis_length(self, source: fx.Node) -> int:
        return self.sets.axis_length(self.layouts[source].channels)

    def _trace_concat(self, node: fx.Node) -> ChannelLayout:
        axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis", 0))
        assert isinstance(axis, int)
        axis %= self.traced_value(node).dim()
        sources = [source for source in node.all_input_nodes if self.traced_value(source).numel()]
        if joined := attention_tracing.concatenate_heads(self, sources, axis):
            return joined
        parts = [self.channels_along(source, axis) for source in sources]
        if None in parts or not axis:
            return self.trace_opaque(node)
        return ChannelLayout(tuple(span for channels in parts for span in channels or ()), axis)

    def _trace_reshape(self, node: fx.Node, module: nn.Module | None = None) -> ChannelLayout:
        before, after = self.traced_value(node.all_input_nodes[0]).shape, self.traced_value(node).shape
        layout = self.input_layout(node)
        heads = attention_tracing.trace_head_reshape(self, node) if module is None else None
        if heads is not None:
            return heads
        if not layout.is_plain or layout.axis != 1:
            return self.trace_opaque(node)
        if after[:2] == before[:2]:
            return layout
        if len(after) != 2 or after[0] != before[0]:
            return self.trace_opaque(node)
        if module is None:
            self.size_free_calls[node.name] = torch.flatten, (1,)
        output = self.sets.multiply_features(layout.channels, math.prod(before[2:]))
        assert output is not None
        return ChannelLayout(output)

    def _trace_reduction(self, node: fx.Node) -> ChannelLayout:
        layout, dims = self.input_layout(node), self.traced_value(node.all_input_nodes[0]).dim()
        axes: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        listed = [int(axis) % dims for axis in ([axes] if isinstance(axes, int) else axes or [])]
        if not listed or {0, layout.axis, layout.inner} & {*listed} or not layout.is_plain:
            return self.trace_opaque(node)
        kept = self.traced_value(node).dim() == dims
        return ChannelLayout(layout.channels, layout.axis - (0 if kept else sum(axis < layout.axis for axis in listed)))

    def _trace_softmax(self, node: fx.Node, module: nn.Module | None = None) -> ChannelLayout:
        layout, dims = self.input_layout(node), self.traced_value(node).dim()
        axis = getattr(module, "dim", node.args[1] if len(node.args) > 1 else node.kwargs.get("dim"))
        if not isinstance(axis, int) or axis % dims in (layout.axis, layout.inner):
            self.sets.pin(layout.channels)
        return layout


def _is_activation(module: nn.Module) -> bool:
    """Whether this is one of Hugging Face's own activation functions, which all work element by element."""
    return type(module).__module__ == "transformers.activations"


def _is_scalar(value: object) -> bool:
    return not isinstance(value, torch.Tensor) or value.numel() == 1


def _side_from_end(value: torch.Tensor, axis: int) -> int:
    """The length of an axis, counted from the end; 1 if the tensor has fewer axes."""
    return value.shape[axis] if -axis <= value.dim() else 1


ModuleTracer = Callable[[ChannelTracer, fx.Node, Any], ChannelLayout]

MODULE_TRACERS: tuple[tuple[type[nn.Module] | tuple[type[nn.Module], ...], ModuleTracer], ...] = (
    (_ConvNd, ChannelTracer._trace_conv),
    (nn.Linear, ChannelTracer._trace_linear),
    (_NormBase, ChannelTracer._trace_norm),
    (nn.GroupNorm, ChannelTracer._trace_group_norm),
    ((nn.Embedding, nn.LayerNorm, nn.RMSNorm), ChannelTracer._trace_last_axis),
    (nn.PReLU, ChannelTracer._trace_prelu),
    (nn.Flatten, ChannelTracer._trace_reshape),
    ((nn.Softmax, nn.LogSoftmax), ChannelTracer._trace_softmax),
    (ELEMENT_LAYERS, ChannelTracer._pass_through),
    (CHANNELWISE_LAYERS, ChannelTracer._pass_channels),
)
CALL_TRACERS: tuple[tuple[frozenset[str], Callable[[Any, fx.Node], ChannelLayout]], ...] = (
    (ELEMENT_CALLS, ChannelTracer._pass_through),
    (CHANNELWISE_CALLS, ChannelTracer._pass_channels),
    (ELEMENTWISE_CALLS, ChannelTracer._trace_elementwise),
    (CONCAT_CALLS, ChannelTracer._trace_concat),
    (RESHAPE_CALLS, ChannelTracer._trace_reshape),
    (REDUCTION_CALLS, ChannelTracer._trace_reduction),
    (SOFTMAX_CALLS, ChannelTracer._trace_softmax),
    (PERMUTATION_CALLS, attention_tracing.trace_permutation),
    (frozenset(["getitem", "__getitem__"]), attention_tracing.trace_item),
    (frozenset(["scaled_dot_product_attention"]), attention_tracing.trace_attention),
    (frozenset(["matmul", "bmm"]), attention_tracing.trace_product),
)
