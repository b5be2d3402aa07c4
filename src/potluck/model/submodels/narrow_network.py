"""Builds the same network with fewer channels: smaller layers, run by the traced forward."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from potluck.model.stage_modules import build_layer_range
from potluck.model.submodels.channel_flow import is_transposed_linear
from potluck.model.submodels.narrow_attention import NarrowAttention
from potluck.model.submodels.slimmable_model import SlimmableModel
from potluck.model.submodels.submodel_selection import TensorAxes, narrowed_shape

__all__ = ["build_narrow_network", "width_agnostic_graph"]

MIN_STRIDED_CHANNELS = 8


def width_agnostic_graph(slimmable: SlimmableModel) -> fx.GraphModule:
    """The whole model as a graph in which no node depends on the number of channels."""
    whole = build_layer_range(slimmable.chain, 0, len(slimmable.chain.layers) - 1, entries=[], exits=None)
    _hold_constants(slimmable, whole)
    for node in list(whole.graph.nodes):
        if node.name in slimmable.size_free_calls:
            function, options = slimmable.size_free_calls[node.name]
            with whole.graph.inserting_before(node):
                size_free = whole.graph.call_function(function, (node.all_input_nodes[0], *options))
            node.replace_all_uses_with(size_free)
            whole.graph.erase_node(node)
    whole.recompile()
    return whole


def _hold_constants(slimmable: SlimmableModel, whole: fx.GraphModule) -> None:
    """Replace tensors that only the graph holds, which fx would count among the model's buffers."""
    assert slimmable.chain.recording is not None
    for name, value in slimmable.chain.recording.constants.items():
        for node in [node for node in whole.graph.nodes if node.op == "get_attr" and node.target == name]:
            whole.add_submodule(f"{name}_held", _ConstantTensor(value))
            with whole.graph.inserting_before(node):
                node.replace_all_uses_with(whole.graph.call_module(f"{name}_held"))
            whole.graph.erase_node(node)
        whole._buffers.pop(name, None)


class _ConstantTensor(nn.Module):
    """Returns a tensor that is neither a parameter nor a buffer."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self) -> Tensor:
        return self.value


def build_narrow_network(
    slimmable: SlimmableModel, whole: fx.GraphModule, counts: Sequence[int], *, static: bool = False
) -> nn.Module:
    """A copy of `whole` that keeps this many units of every set; all its weights are zero.

    A `static` batch norm normalises with its mini-batch's statistics and does not update the running ones.
    """
    small = copy.deepcopy(whole)
    _name_as_owned(small, slimmable)
    for activation in _inplace_activations(small):
        activation.inplace = True
    for path, layer in small.named_modules():
        for name, tensor in _own_tensors(layer):
            tensor.data = tensor.new_zeros(
                narrowed_shape(tensor.shape, slimmable.axes.get(f"{path}.{name}", TensorAxes()), counts)
            )
        for kind, update_sizes in SIZE_UPDATES.items():
            if isinstance(layer, kind):
                update_sizes(layer)
        if is_transposed_linear(layer):
            layer.nx, layer.nf = layer.weight.shape
        if static and isinstance(layer, _NormBase):
            layer.track_running_stats = False
    return small


def _name_as_owned(small: fx.GraphModule, slimmable: SlimmableModel) -> None:
    """Have tied weights go by the names that the model's layers own them by: a module names a tensor where it is first.

    A graph holds its modules in the order in which it calls them, which need not be that of the model.
    """
    names = {name for name, _ in small.named_parameters()}
    for path in [entry.name for entry in slimmable.layout.params if entry.name not in names]:
        module: nn.Module = small
        for step in path.split(".")[:-1]:
            child = module.get_submodule(step)
            module._modules = {step: child, **module._modules}
            module = child


def _inplace_activations(small: fx.GraphModule) -> Iterator[nn.ReLU]:
    """Activations that may overwrite their input: nothing else reads it, not even the backward of what computed it.

    Only plain ReLU: autograd keeps a copy of what ReLU6 overwrites.
    """
    for node in small.graph.nodes:
        layer = small.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(layer, nn.ReLU):
            (source,) = node.all_input_nodes
            if len(source.users) == 1 and _backward_ignores_output(small, source):
                yield layer


def _backward_ignores_output(small: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(small.get_submodule(str(node.target)), _ConvNd | nn.Linear | nn.BatchNorm2d)
    return node.target is operator.add


def _own_tensors(layer: nn.Module) -> list[tuple[str, Tensor]]:
    return [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]


def _update_conv_sizes(conv: _ConvNd) -> None:
    """Update the size attributes of a layer to its weights."""
    outputs = len(conv.weight)
    conv.groups = conv.groups * outputs // conv.out_channels if conv.groups > 1 else 1
    conv.out_channels, conv.in_channels = outputs, conv.weight.shape[1] * conv.groups
    if type(conv) is nn.Conv2d and _is_strided_pointwise(conv) and conv.in_channels < MIN_STRIDED_CHANNELS:
        conv.__class__ = _SubsampledConv2d


def _update_linear_sizes(linear: nn.Linear) -> None:
    linear.out_features, linear.in_features = linear.weight.shape


def _update_norm_sizes(norm: _NormBase) -> None:
    if norm.running_mean is not None or norm.weight is not None:
        norm.num_features = len(norm.running_mean if norm.running_mean is not None else norm.weight)


def _update_group_norm_sizes(norm: nn.GroupNorm) -> None:
    if norm.weight is not None:
        norm.num_groups = norm.num_groups * len(norm.weight) // norm.num_channels
        norm.num_channels = len(norm.weight)


def _update_attention_sizes(attention: nn.MultiheadAttention) -> None:
    packed = attention.in_proj_weight
    heads = attention.num_heads if packed is None else len(packed) // (3 * attention.head_dim)
    if heads < attention.num_heads:
        attention.num_heads = heads
        attention.__class__ = NarrowAttention


SIZE_UPDATES: dict[type[nn.Module], Callable[[Any], None]] = {
    _ConvNd: _update_conv_sizes,
    nn.Linear: _update_linear_sizes,
    _NormBase: _update_norm_sizes,
    nn.GroupNorm: _update_group_norm_sizes,
    nn.MultiheadAttention: _update_attention_sizes,
}


def _is_strided_pointwise(conv: nn.Conv2d) -> bool:
    return set(conv.kernel_size) == {1} and set(conv.stride) != {1} and not any(map(bool, conv.padding))


class _SubsampledConv2d(nn.Conv2d):
    """A strided 1×1 convolution, computed as one without stride on a subsampled input.

    For channels-last inputs with fewer than 8 channels, oneDNN's weight gradient of the strided form writes past its
    workspace (uxlfoundation/oneDNN issue 6035: crashes or wrong results).
    """

    def forward(self, input: Tensor) -> Tensor:
        subsampled = input[:, :, :: self.stride[0], :: self.stride[1]]
        return nn.functional.conv2d(subsampled, self.weight, self.bias, groups=self.groups)
