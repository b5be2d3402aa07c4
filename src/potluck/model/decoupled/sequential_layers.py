"""Traces a network as a plain sequence of layers, whatever its forward looks like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from potluck.errors import ModelError
from potluck.model.decoupled.layer_spec import describe_layer, is_depthwise
from potluck.model.flop_counter import macs_per_sample
from potluck.model.graph_recording import GraphRecording, UntraceableError, record_graph
from potluck.model.meta_interpreter import PROBE_BATCH_SIZES
from potluck.planning.groups import ChannelLayer

__all__ = ["SequentialLayer", "layer_costs", "mixes_channels", "trace_sequential", "trunk_length"]

# Functions and the modules that do the same.
FUNCTIONS: dict[object, Callable[..., nn.Module]] = {
    torch.relu: nn.ReLU,
    F.relu: lambda inplace=False: nn.ReLU(),
    torch.tanh: nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    torch.flatten: nn.Flatten,
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}
METHODS: dict[object, Callable[..., nn.Module]] = {"relu": nn.ReLU, "flatten": nn.Flatten}


class SequentialLayer(NamedTuple):
    """A layer of the sequence; `source` is its name in the network.

    Flattening keeps the channels (`inputs`, `outputs`) but turns the positions of each into features; `width` is
    the number of input channels or features.
    """

    name: str
    source: str
    layer: nn.Module
    inputs: int
    outputs: int
    width: int
    positions: int
    macs: int


def trace_sequential(module: nn.Module, shape: tuple[int, ...]) -> tuple[SequentialLayer, ...]:
    """The network's layers from input to logits; ModelError says where it is not a plain sequence."""
    dtype = next(module.parameters()).dtype
    try:
        recording = record_graph(module, tuple(shape), dtype)
    except UntraceableError as why:
        raise ModelError(f"{type(module).__name__} cannot be decoupled: its forward cannot be traced ({why})") from None
    steps = _walk_graph(recording, module)
    _check_layers(steps)
    return steps


def mixes_channels(step: SequentialLayer) -> bool:
    """Whether this layer connects channels with one another."""
    return isinstance(step.layer, nn.Conv1d | nn.Conv2d | nn.Linear) and not is_depthwise(step.layer)


def trunk_length(steps: Sequence[SequentialLayer], depth: int) -> int:
    """How many layers the trunk has: up to the next one that mixes channels, without the dropout before that."""
    mixing = [index for index, step in enumerate(steps) if mixes_channels(step)]
    if not 0 <= depth < len(mixing):
        raise ModelError(f"depth {depth} leaves no layer for the groups; choose from 0 to {len(mixing) - 1}")
    if depth == 0:
        return 0
    end = mixing[depth]
    while isinstance(steps[end - 1].layer, nn.Dropout | nn.Dropout2d):
        end -= 1
    return end


def layer_costs(steps: Sequence[SequentialLayer]) -> tuple[ChannelLayer, ...]:
    """The layers with weights by their channels, for planning; a norm is added to the layer before it."""
    layers: list[ChannelLayer] = []
    for step in steps:
        parameters = sum(parameter.numel() for parameter in step.layer.parameters())
        if isinstance(step.layer, nn.Conv1d | nn.Conv2d | nn.Linear):
            layers.append(_layer_cost(step))
        elif parameters and layers:
            last = layers[-1]
            layers[-1] = ChannelLayer(**{**vars(last), "extras": last.extras + parameters // last.outputs})
    return tuple(layers)


def _layer_cost(step: SequentialLayer) -> ChannelLayer:
    depthwise = is_depthwise(step.layer)
    groups = 1 if depthwise else getattr(step.layer, "groups", 1)  # a trunk may have grouped convolutions
    pairs = step.outputs if depthwise else step.inputs // groups * step.outputs
    weight, bias = step.layer.weight, step.layer.bias
    assert isinstance(weight, Tensor)
    return ChannelLayer(
        name=step.source,
        inputs=step.inputs // groups,
        outputs=step.outputs,
        macs=step.macs // pairs,
        weights=weight.numel() // pairs,
        extras=0 if bias is None else 1,
        depthwise=depthwise,
    )


def _check_layers(steps: Sequence[SequentialLayer]) -> None:
    for index, step in enumerate(steps):
        describe_layer(step.name, step.layer)
        if any(other.layer is step.layer for other in steps[:index]):
            raise ModelError(f"layer {step.source!r} is used twice; a network to decouple uses each layer once")
    if not steps or not isinstance(steps[-1].layer, nn.Linear):
        last = steps[-1].name if steps else "nothing"
        raise ModelError(f"a network to decouple must end in a Linear layer with one output per class, not in {last!r}")


def _walk_graph(recording: GraphRecording, module: nn.Module) -> tuple[SequentialLayer, ...]:
    steps: list[SequentialLayer] = []
    before: fx.Node | None = None
    channels = 0
    for node in recording.graph.nodes:
        value = recording.facts[node].value if node in recording.facts else None
        if node.op in ("output", "get_attr") or not isinstance(value, Tensor):
            continue
        if node.op == "placeholder":
            before, channels = node, value.shape[1]
            continue
        source = _input_node(node, recording)
        if source is not before:
            raise ModelError(f"the network branches at {node.target!s}; only a plain sequence can be decoupled")
        step = _sequential_layer(node, module, recording, channels)
        channels = step.outputs
        steps.append(step)
        before = node
    return tuple(steps)


def _input_node(node: fx.Node, recording: GraphRecording) -> fx.Node | None:
    """The only tensor among a node's inputs; None if there are several or none."""
    tensors = [source for source in node.all_input_nodes if isinstance(recording.facts[source].value, Tensor)]
    return tensors[0] if len(tensors) == 1 else None


def _sequential_layer(node: fx.Node, module: nn.Module, recording: GraphRecording, channels: int) -> SequentialLayer:
    source = _input_node(node, recording)
    assert source is not None
    before, fact = recording.facts[source].value, recording.facts[node]
    layer = _node_module(node, module, recording)
    weighted = isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear)
    path = str(node.target) if node.op == "call_module" else ""
    if isinstance(layer, nn.Linear | nn.Flatten) and fact.value.dim() != 2:
        raise ModelError(
            f"{path or node.name!r} returns {fact.value.dim()} dimensions; a network to decouple must flatten to 2"
        )
    return SequentialLayer(
        name=(path or node.name).replace(".", "_"),
        source=path or node.name,
        layer=layer,
        inputs=channels,
        outputs=fact.value.shape[1] if weighted else channels,
        width=before.shape[1],
        positions=prod(before.shape[1:]) // channels,
        macs=macs_per_sample(fact.flops, PROBE_BATCH_SIZES[0]),
    )


def _node_module(node: fx.Node, module: nn.Module, recording: GraphRecording) -> nn.Module:
    if node.op == "call_module":
        return module.get_submodule(str(node.target))
    if node.op == "call_method" and node.target in ("view", "reshape") and recording.facts[node].value.dim() == 2:
        return nn.Flatten()
    module_class = (FUNCTIONS if node.op == "call_function" else METHODS).get(node.target)
    if module_class is None:
        raise ModelError(f"the call {node.name!r} cannot be decoupled; use torch.nn modules in the forward")
    options: dict[str, Any] = dict(node.kwargs)
    return module_class(*node.args[1:], **options)
