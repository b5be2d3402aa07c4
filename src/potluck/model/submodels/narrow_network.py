"""The same network with fewer channels, as a real module: the layers are smaller, the forward is the one traced."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from potluck.model.stage_modules import build_layer_range
from potluck.model.submodels.slimmable_model import SlimmableModel
from potluck.model.submodels.submodel_selection import TensorAxes, narrowed_shape

__all__ = ["build_narrow_network", "width_agnostic_graph"]

FEWEST_STRIDED = 8


def width_agnostic_graph(width: SlimmableModel) -> fx.GraphModule:
    """The whole model as a graph in which no node says how many channels there are."""
    whole = build_layer_range(width.chain, 0, len(width.chain.layers) - 1, entries=[], exits=None)
    for node in list(whole.graph.nodes):
        if node.name in width.flattened and node.op != "call_module":
            with whole.graph.inserting_before(node):
                flat = whole.graph.call_function(torch.flatten, (node.all_input_nodes[0], 1))
            node.replace_all_uses_with(flat)
            whole.graph.erase_node(node)
    whole.recompile()
    return whole


def build_narrow_network(
    width: SlimmableModel, whole: fx.GraphModule, counts: Sequence[int], *, static: bool = False
) -> nn.Module:
    """A copy of `whole` that keeps so many units of every set; all its numbers are zero.

    A `static` batch norm normalises by its mini-batch and leaves its running statistics alone.
    """
    small = copy.deepcopy(whole)
    for activation in _inplace_activations(small):
        activation.inplace = True
    for path, layer in small.named_modules():
        for name, tensor in _own_tensors(layer):
            tensor.data = tensor.new_zeros(
                narrowed_shape(tensor.shape, width.axes.get(f"{path}.{name}", TensorAxes()), counts)
            )
        for kind, settle in SETTLE.items():
            if isinstance(layer, kind):
                settle(layer)
        if static and isinstance(layer, _NormBase):
            layer.track_running_stats = False
    return small


def _inplace_activations(small: fx.GraphModule) -> Iterator[nn.ReLU]:
    """Activations that may write over their input: nobody else reads it, nor does its maker's backward.

    Only plain ReLU: autograd keeps a copy of what ReLU6 writes over.
    """
    for node in small.graph.nodes:
        layer = small.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(layer, nn.ReLU):
            (source,) = node.all_input_nodes
            if len(source.users) == 1 and _forgets_its_output(small, source):
                yield layer


def _forgets_its_output(small: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(small.get_submodule(str(node.target)), _ConvNd | nn.Linear | nn.BatchNorm2d)
    return node.target is operator.add


def _own_tensors(layer: nn.Module) -> list[tuple[str, Tensor]]:
    return [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]


def _update_conv_sizes(conv: _ConvNd) -> None:
    """Bring the numbers that a layer keeps about its own size up to date."""
    outputs = len(conv.weight)
    conv.groups = conv.groups * outputs // conv.out_channels if conv.groups > 1 else 1
    conv.out_channels, conv.in_channels = outputs, conv.weight.shape[1] * conv.groups
    if type(conv) is nn.Conv2d and _is_strided_pointwise(conv) and conv.in_channels < FEWEST_STRIDED:
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


SETTLE: dict[type[nn.Module], Callable[[Any], None]] = {
    _ConvNd: _update_conv_sizes,
    nn.Linear: _update_linear_sizes,
    _NormBase: _update_norm_sizes,
    nn.GroupNorm: _update_group_norm_sizes,
}


def _is_strided_pointwise(conv: nn.Conv2d) -> bool:
    return set(conv.kernel_size) == {1} and set(conv.stride) != {1} and not any(map(bool, conv.padding))


class _SubsampledConv2d(nn.Conv2d):
    """A strided 1×1 convolution as one without stride on every other pixel.

    For inputs that are channels last and fewer than 8, oneDNN's weight gradient of the strided form writes past its
    workspace (uxlfoundation/oneDNN issue 6035: crashes, or wrong numbers).
    """

    def forward(self, input: Tensor) -> Tensor:
        picked = input[:, :, :: self.stride[0], :: self.stride[1]]
        return nn.functional.conv2d(picked, self.weight, self.bias, groups=self.groups)
