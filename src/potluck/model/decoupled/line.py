"""A network as one straight line of layers, whatever its forward looks like: traced, named, measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from potluck.errors import ModelError
from potluck.model.costs import per_sample
from potluck.model.decoupled.blueprint import describe, is_depthwise
from potluck.model.rehearsal import BATCHES
from potluck.model.tracing import Recording, Untraceable, record
from potluck.planning.groups import Layer

__all__ = ["Step", "costs", "is_mixing", "straighten", "trunk_steps"]

# Calls without a module of their own, as the module that does the same.
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


class Step(NamedTuple):
    """A layer of the line; `source` is its name in the network.

    Flattening keeps the channels (`inputs`, `outputs`) but gives each as many features as it has positions; `width` is
    the number of channels or features that come in.
    """

    name: str
    source: str
    layer: nn.Module
    inputs: int
    outputs: int
    width: int
    positions: int
    macs: int


def straighten(module: nn.Module, shape: tuple[int, ...]) -> tuple[Step, ...]:
    """The network's layers from input to logits; ModelError says where it is not a straight line."""
    dtype = next(module.parameters()).dtype
    try:
        recording = record(module, tuple(shape), dtype)
    except Untraceable as why:
        raise ModelError(f"{type(module).__name__} cannot be decoupled: its forward cannot be traced ({why})") from None
    steps = _walk(recording, module)
    _check(steps)
    return steps


def is_mixing(step: Step) -> bool:
    """Does this layer connect channels with one another?"""
    return isinstance(step.layer, nn.Conv1d | nn.Conv2d | nn.Linear) and not is_depthwise(step.layer)


def trunk_steps(steps: Sequence[Step], depth: int) -> int:
    """How many steps the shared trunk has: up to the next layer that mixes channels, without dropout before it."""
    mixing = [place for place, step in enumerate(steps) if is_mixing(step)]
    if not 0 <= depth < len(mixing):
        raise ModelError(f"depth {depth} leaves no layer for the groups; choose from 0 to {len(mixing) - 1}")
    if depth == 0:
        return 0
    end = mixing[depth]
    while isinstance(steps[end - 1].layer, nn.Dropout | nn.Dropout2d):
        end -= 1
    return end


def costs(steps: Sequence[Step]) -> tuple[Layer, ...]:
    """The weighted layers by their channels, for planning; a norm counts to the layer before it."""
    layers: list[Layer] = []
    for step in steps:
        numbers = sum(parameter.numel() for parameter in step.layer.parameters())
        if isinstance(step.layer, nn.Conv1d | nn.Conv2d | nn.Linear):
            layers.append(_cost(step))
        elif numbers and layers:
            last = layers[-1]
            layers[-1] = Layer(**{**vars(last), "extras": last.extras + numbers // last.outputs})
    return tuple(layers)


def _cost(step: Step) -> Layer:
    depthwise = is_depthwise(step.layer)
    groups = 1 if depthwise else getattr(step.layer, "groups", 1)  # a trunk may have convolutions with some
    pairs = step.outputs if depthwise else step.inputs // groups * step.outputs
    weight, bias = step.layer.weight, step.layer.bias
    assert isinstance(weight, Tensor)
    return Layer(
        name=step.source,
        inputs=step.inputs // groups,
        outputs=step.outputs,
        macs=step.macs // pairs,
        weights=weight.numel() // pairs,
        extras=0 if bias is None else 1,
        depthwise=depthwise,
    )


def _check(steps: Sequence[Step]) -> None:
    for place, step in enumerate(steps):
        describe(step.name, step.layer)
        if any(other.layer is step.layer for other in steps[:place]):
            raise ModelError(f"layer {step.source!r} is used twice; a network to decouple uses each layer once")
    if not steps or not isinstance(steps[-1].layer, nn.Linear):
        last = steps[-1].name if steps else "nothing"
        raise ModelError(f"a network to decouple ends in a Linear layer of one output per class, not in {last!r}")


def _walk(recording: Recording, module: nn.Module) -> tuple[Step, ...]:
    steps: list[Step] = []
    before: fx.Node | None = None
    channels = 0
    for node in recording.graph.nodes:
        value = recording.facts[node].value if node in recording.facts else None
        if node.op in ("output", "get_attr") or not isinstance(value, Tensor):
            continue
        if node.op == "placeholder":
            before, channels = node, value.shape[1]
            continue
        source = _source(node, recording)
        if source is not before:
            raise ModelError(f"the network branches at {node.target!s}; only a straight line can be decoupled")
        step = _step(node, module, recording, channels)
        channels = step.outputs
        steps.append(step)
        before = node
    return tuple(steps)


def _source(node: fx.Node, recording: Recording) -> fx.Node | None:
    """The one tensor that a node takes, or None."""
    tensors = [given for given in node.all_input_nodes if isinstance(recording.facts[given].value, Tensor)]
    return tensors[0] if len(tensors) == 1 else None


def _step(node: fx.Node, module: nn.Module, recording: Recording, channels: int) -> Step:
    source = _source(node, recording)
    assert source is not None
    before, fact = recording.facts[source].value, recording.facts[node]
    layer = _layer(node, module, recording)
    weighted = isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear)
    path = str(node.target) if node.op == "call_module" else ""
    if isinstance(layer, nn.Linear | nn.Flatten) and fact.value.dim() != 2:
        raise ModelError(
            f"{path or node.name!r} gives {fact.value.dim()} dimensions; a network to decouple flattens to 2"
        )
    return Step(
        name=(path or node.name).replace(".", "_"),
        source=path or node.name,
        layer=layer,
        inputs=channels,
        outputs=fact.value.shape[1] if weighted else channels,
        width=before.shape[1],
        positions=prod(before.shape[1:]) // channels,
        macs=per_sample(fact.flops, BATCHES[0]),
    )


def _layer(node: fx.Node, module: nn.Module, recording: Recording) -> nn.Module:
    if node.op == "call_module":
        return module.get_submodule(str(node.target))
    if node.op == "call_method" and node.target in ("view", "reshape") and recording.facts[node].value.dim() == 2:
        return nn.Flatten()
    made = (FUNCTIONS if node.op == "call_function" else METHODS).get(node.target)
    if made is None:
        raise ModelError(f"{node.name!r} is a call that cannot be decoupled; use torch.nn modules in the forward")
    options: dict[str, Any] = dict(node.kwargs)
    return made(*node.args[1:], **options)
