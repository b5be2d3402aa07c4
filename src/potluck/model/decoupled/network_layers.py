"""Traces a classifier as layers that read one another, whatever its forward looks like."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from potluck.errors import ModelError
from potluck.model.decoupled.joining_layers import AddTensors, ConcatenateChannels, MultiplyTensors, SpatialMean
from potluck.model.decoupled.layer_spec import describe_layer
from potluck.model.flop_counter import macs_per_sample
from potluck.model.graph_recording import GraphRecording, UntraceableError, record_graph
from potluck.model.input_spec import InputSpec
from potluck.model.layer_chain import LayerChain
from potluck.model.meta_interpreter import PROBE_BATCH_SIZES
from potluck.planning.groups import ChannelGraph, ChannelStep

__all__ = ["NetworkLayer", "channel_graph", "refuse_tokens", "run_layers", "trace_network"]

# Functions and the modules that do the same.
FUNCTIONS: dict[object, Callable[..., nn.Module]] = {
    torch.relu: nn.ReLU,
    F.relu: lambda inplace=False: nn.ReLU(),
    F.relu6: lambda inplace=False: nn.ReLU6(),
    F.silu: lambda inplace=False: nn.SiLU(),
    F.gelu: nn.GELU,
    torch.tanh: nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    torch.flatten: nn.Flatten,
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}
METHODS: dict[object, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "flatten": nn.Flatten,
}
JOINS: dict[object, Callable[[], nn.Module]] = {
    **dict.fromkeys([operator.add, operator.iadd, torch.add, "add", "add_"], AddTensors),
    **dict.fromkeys([operator.mul, operator.imul, torch.mul, "mul", "mul_"], MultiplyTensors),
    **dict.fromkeys([torch.cat, torch.concat], ConcatenateChannels),
}
_IN_PLACE = (operator.iadd, operator.imul, "add_", "mul_")
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
_WEIGHTED = (*_CONVOLUTIONS, nn.Linear)


class NetworkLayer(NamedTuple):
    """A layer and the layers that it reads by index (-1: the network's input); `source` is its name in the network.

    `positions` is how many features flattening would make of each of its input's channels.
    """

    name: str
    source: str
    layer: nn.Module
    sources: tuple[int, ...]
    inputs: int
    outputs: int
    positions: int
    macs: int


def trace_network(module: nn.Module, shape: tuple[int, ...]) -> tuple[NetworkLayer, ...]:
    """The network's layers from input to logits; ModelError says which of them cannot be decoupled."""
    dtype = next(module.parameters()).dtype
    try:
        recording = record_graph(module, InputSpec.of_shape(shape, dtype))
    except UntraceableError as why:
        raise ModelError(f"{type(module).__name__} cannot be decoupled: its forward cannot be traced ({why})") from None
    layers = _LayerRecorder(recording, module).layers
    _check_layers(layers)
    return tuple(layers)


def refuse_tokens(chain: LayerChain) -> None:
    """Raise ModelError for a model of tokens or several inputs, which is never such a classifier."""
    if not chain.inputs.is_tensor or not chain.inputs.dtypes[0].is_floating_point:
        taken = "tokens" if chain.inputs.is_tensor else "several inputs"
        raise ModelError(
            "rounds.submodel: class groups (recipe 'decoupled') need a classifier of "
            f"convolutions and linear layers, but {type(chain.module).__name__} takes {taken}; recipes 'distreal' and "
            "'heterofl' divide such a model by attention heads and feed-forward units"
        )


def channel_graph(layers: Sequence[NetworkLayer]) -> ChannelGraph:
    """The layers by their channels and costs, for planning."""
    return ChannelGraph(tuple(map(_channel_step, layers)), layers[0].inputs)


@torch.no_grad()
def run_layers(layers: Sequence[NetworkLayer], inputs: Tensor) -> Tensor:
    """The output of the last of these layers in evaluation mode; the inputs themselves if there is none."""
    values = [inputs]
    for layer in layers:
        values.append(run_in_eval_mode(layer.layer, *(values[source + 1] for source in layer.sources)))
    return values[-1]


def run_in_eval_mode(layer: nn.Module, *values: Tensor) -> Tensor:
    """Run the layer in evaluation mode and restore its mode."""
    mode = layer.training
    try:
        out: Tensor = layer.eval()(*values)
        return out
    finally:
        layer.train(mode)


def _channel_step(layer: NetworkLayer) -> ChannelStep:
    module, sources = layer.layer, layer.sources
    parameters = sum(parameter.numel() for parameter in module.parameters())
    common = {"name": layer.source, "sources": sources, "channels": layer.outputs}
    if isinstance(module, _WEIGHTED):
        groups = getattr(module, "groups", 1)
        reads = layer.inputs // groups
        pairs, extras = reads * layer.outputs, 0 if module.bias is None else 1
        costs = {"macs": layer.macs // pairs, "weights": module.weight.numel() // pairs, "extras": extras}
        if groups == 1:
            return ChannelStep(kind="mix", **common, **costs)  # type: ignore[arg-type]
        return ChannelStep(kind="grouped", runs=groups, reads=reads, **common, **costs)  # type: ignore[arg-type]
    if isinstance(module, nn.Flatten):
        return ChannelStep(kind="flatten", positions=layer.positions, **common)  # type: ignore[arg-type]
    if isinstance(module, ConcatenateChannels):
        return ChannelStep(kind="concat", **common)  # type: ignore[arg-type]
    if isinstance(module, AddTensors | MultiplyTensors):
        return ChannelStep(kind="join", **common)  # type: ignore[arg-type]
    runs = module.num_groups if isinstance(module, nn.GroupNorm) else 0
    random = isinstance(module, nn.Dropout | nn.Dropout2d)
    extras = parameters // layer.outputs
    return ChannelStep(kind="pass", runs=runs, extras=extras, dropout=random, **common)  # type: ignore[arg-type]


def _check_layers(layers: Sequence[NetworkLayer]) -> None:
    for layer in layers:
        describe_layer(layer.source, layer.layer)
    if not layers or not isinstance(layers[-1].layer, nn.Linear):
        last = layers[-1].name if layers else "nothing"
        raise ModelError(f"a network to decouple must end in a Linear layer with one output per class, not in {last!r}")
    if len(layers) > 1 and layers[-1].sources != (len(layers) - 2,):
        raise ModelError(f"layer {layers[-1].source!r} must follow on the last layer before it")


class _LayerRecorder:
    """Follows a recorded forward from input to output."""

    def __init__(self, recording: GraphRecording, module: nn.Module) -> None:
        self.layers: list[NetworkLayer] = []
        self._recording = recording
        self._module = module
        self._index_of: dict[fx.Node, int] = {}
        self._used: set[int] = set()
        wanted = _needed_nodes(recording.graph)
        for node in recording.graph.nodes:
            if node.op in ("output", "get_attr") or node not in wanted or self._tensor(node) is None:
                continue
            if node.op == "placeholder":
                self._index_of[node] = -1
            else:
                self._record_layer(node)

    def _tensor(self, node: fx.Node) -> Tensor | None:
        fact = self._recording.facts.get(node)
        return fact.value if fact is not None and isinstance(fact.value, Tensor) else None

    def _record_layer(self, node: fx.Node) -> None:
        sources = [source for source in _operands(node) if self._tensor(source) is not None]
        unknown = [source for source in sources if source not in self._index_of]
        if unknown or not sources:
            raise ModelError(f"{_where(node)} uses a tensor of the module itself; a network to decouple uses layers")
        layer = self._node_module(node, len(sources))
        before, after = self._tensor(sources[0]), self._tensor(node)
        assert before is not None
        assert after is not None
        self._check_shapes(node, layer, [self._tensor(source) for source in sources])
        path = str(node.target) if node.op == "call_module" and id(layer) not in self._used else ""
        self._used.add(id(layer))
        self.layers.append(
            NetworkLayer(
                name=(path or node.name).replace(".", "_"),
                source=str(node.target) if node.op == "call_module" else node.name,
                layer=_out_of_place(path, layer),
                sources=tuple(self._index_of[source] for source in sources),
                inputs=before.shape[1],
                outputs=after.shape[1],
                positions=prod(before.shape[2:]),
                macs=macs_per_sample(self._recording.facts[node].flops, PROBE_BATCH_SIZES[0]),
            )
        )
        self._index_of[node] = len(self.layers) - 1
        if getattr(layer, "inplace", False) or node.kwargs.get("inplace") or node.target in _IN_PLACE:
            self._index_of[sources[0]] = self._index_of[node]  # what reads the changed tensor later reads the result

    def _node_module(self, node: fx.Node, operands: int) -> nn.Module:
        if node.op == "call_module":
            layer = self._module.get_submodule(str(node.target))
            if id(layer) in self._used and layer.state_dict():
                raise ModelError(
                    f"layer {str(node.target)!r} is used twice; a network to decouple uses each layer once"
                )
            return layer
        after = self._tensor(node)
        assert after is not None
        if node.target in JOINS and not node.kwargs.get("alpha"):
            return self._join_module(node, operands)
        if node.target in ("view", "reshape", torch.reshape) and after.dim() == 2:
            return nn.Flatten()
        if node.target in ("mean", torch.mean):
            return self._mean_module(node)
        module_class = (FUNCTIONS if node.op == "call_function" else METHODS).get(node.target)
        if module_class is None or operands != 1:
            raise ModelError(f"{_where(node)} cannot be decoupled; use torch.nn modules in the forward")
        options: dict[str, Any] = dict(node.kwargs)
        return module_class(*node.args[1:], **options)

    def _join_module(self, node: fx.Node, operands: int) -> nn.Module:
        layer = JOINS[node.target]()
        axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis", 0))
        if isinstance(layer, ConcatenateChannels):
            if axis not in (1, 1 - self._recording.facts[node].value.dim()):
                raise ModelError(f"{_where(node)} cannot be decoupled; only channels can be concatenated")
        elif operands != 2:
            raise ModelError(
                f"{_where(node)} cannot be decoupled; only the outputs of layers can be added or multiplied"
            )
        return layer

    def _mean_module(self, node: fx.Node) -> nn.Module:
        dims = self._recording.facts[_operands(node)[0]].value.dim()
        given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", ())
        axes = {int(axis) % dims for axis in ([given] if isinstance(given, int) else given or ())}
        if axes != set(range(2, dims)):
            raise ModelError(f"{_where(node)} cannot be decoupled; a mean must be over all positions of a channel")
        return SpatialMean(bool(node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)))

    def _check_shapes(self, node: fx.Node, layer: nn.Module, operands: Sequence[Tensor | None]) -> None:
        after = self._tensor(node)
        assert after is not None
        if isinstance(layer, nn.Linear | nn.Flatten) and after.dim() != 2:
            raise ModelError(
                f"{_where(node)} returns {after.dim()} dimensions; a network to decouple must flatten to 2"
            )
        shapes = {(operand.dim(), operand.shape[1]) for operand in operands if operand is not None}
        if isinstance(layer, AddTensors | MultiplyTensors) and len(shapes) > 1:
            raise ModelError(f"{_where(node)} joins tensors of different channels, which cannot be divided into groups")


def _needed_nodes(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that the output depends on."""
    needed = {node for node in graph.nodes if node.op == "output"}
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return needed


def _operands(node: fx.Node) -> list[fx.Node]:
    """A node's inputs in the order of its arguments, including repeated ones."""
    found: list[fx.Node] = []
    fx.map_arg(node.args, lambda operand: found.append(operand))
    fx.map_arg(dict(node.kwargs), lambda operand: found.append(operand))
    return found


def _out_of_place(path: str, layer: nn.Module) -> nn.Module:
    """The layer, or one that does the same without changing its input."""
    return describe_layer(path, layer).build_layer() if getattr(layer, "inplace", False) else layer


def _where(node: fx.Node) -> str:
    return f"layer {str(node.target)!r}" if node.op == "call_module" else f"the call {node.name!r}"
