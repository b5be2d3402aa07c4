"""Measures the seconds that each layer and the whole model take on this device, forward and backward.

Each layer runs as its own module on detached inputs, so that its backward can be timed alone; whole steps
are timed in between, so that drift of the machine affects both. The model's buffers, gradients and mode and
the random state are restored afterwards.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_map_only

from potluck.errors import ModelError
from potluck.model.cut_points import is_ambient
from potluck.model.flop_counter import iter_tensors
from potluck.model.input_spec import call_model
from potluck.model.layer_chain import LayerChain
from potluck.model.stage_modules import build_layer_range

__all__ = ["MeasuredTimes", "module_device", "run_each_layer", "time_layers", "time_whole_model"]

OVERHEAD_REPEATS = 9
_WARM_UP_SAMPLES = 4

Gradients = dict[tuple[fx.Node, int], torch.Tensor]


@dataclass
class MeasuredTimes:
    """One run: the seconds of each layer forward and backward, and of the whole step."""

    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    whole: float = 0.0

    def minus_overhead(self, forward_s: float, backward_s: float) -> MeasuredTimes:
        """The same without the overhead of running a layer as its own module."""
        forward = [max(seconds - forward_s, 0.0) for seconds in self.forward]
        return MeasuredTimes(forward, [max(seconds - backward_s, 0.0) for seconds in self.backward], self.whole)

    @property
    def layers_to_whole(self) -> float:
        """The layers' sum divided by the whole step."""
        return sum(self.forward + self.backward) / self.whole


def time_layers(
    chain: LayerChain, batch: int, runs: int, progress: Callable[[int, int], None] | None
) -> list[MeasuredTimes]:
    """Time `runs` runs, each layer by layer and then as a whole step."""
    with _preserve_module(chain.module):
        data = _random_batch(chain, batch)
        layers = [_TimedLayer(chain, layer) for layer in range(len(chain.layers))]
        measured = []
        for run in range(runs):
            times = _time_run(layers, data).minus_overhead(*_layer_overhead(data))
            times.whole = sum(_time_step(chain.module, data))
            measured.append(times)
            if progress is not None:
                progress(run + 1, runs)
        return measured


def time_whole_model(
    chain: LayerChain, batch: int, runs: int, progress: Callable[[int, int], None] | None
) -> list[tuple[float, float]]:
    """Time the whole model, forward and backward, where it cannot be run layer by layer."""
    with _preserve_module(chain.module):
        data = _random_batch(chain, batch)
        measured = []
        for run in range(runs):
            measured.append(_time_step(chain.module, data))
            if progress is not None:
                progress(run + 1, runs)
        return measured


def run_each_layer(chain: LayerChain, batch: int, next_pass: Callable[[], None]) -> None:
    """Run every layer on its own, forward and then backward, for the caller to time.

    `next_pass` is called before each pass, not while a small batch warms up, and never if the model cannot be run layer
    by layer. No more than one layer's activations are held.
    """
    if chain.recording is None:
        return
    with _preserve_module(chain.module):
        layers = [_TimedLayer(chain, layer) for layer in range(len(chain.layers))]
        _run_layers_alone(layers, _random_batch(chain, min(batch, _WARM_UP_SAMPLES)), lambda: None)
        _run_layers_alone(layers, _random_batch(chain, batch), next_pass)


def module_device(module: nn.Module) -> torch.device:
    """The device that the model's parameters are on."""
    return next(module.parameters()).device


class _TimedLayer:
    """One layer as a module, with the nodes it reads from earlier layers and hands on to later ones."""

    def __init__(self, chain: LayerChain, layer: int) -> None:
        inside = [node for node, index in chain.layer_of.items() if index == layer and not is_ambient(node)]
        sources = {source: None for node in inside for source in node.all_input_nodes if not is_ambient(source)}
        self.entries = [node for node in sources if chain.layer_of[node] < layer]
        self.exits = [node for node in inside if any(chain.layer_of[user] > layer for user in node.users)]
        self.first, self.last = layer == 0, layer == len(chain.layers) - 1
        assert chain.recording is not None
        self._binding = chain.recording.binding
        exits = None if self.last else self.exits
        self.module = build_layer_range(chain, layer, layer, entries=self.entries, exits=exits)
        self.parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def forward(self, values: dict[fx.Node, Any], data: Any) -> tuple[list[Any], Any]:
        """The inputs (detached) and the output."""
        inputs = [tree_map_only(torch.Tensor, _detach_input, values[node]) for node in self.entries]
        if self.first:
            return inputs, self.module(*self._binding.arguments(data))
        arguments: tuple[Any, ...] = (tuple(inputs),) if len(inputs) > 1 else tuple(inputs)
        return inputs, self.module(*arguments)

    def outputs_by_node(self, output: Any) -> dict[fx.Node, Any]:
        """The output's values by the node that computed them."""
        if self.last:
            return {}
        return dict(zip(self.exits, output if len(self.exits) != 1 else (output,), strict=True))


def _time_run(layers: list[_TimedLayer], data: Any) -> MeasuredTimes:
    times, passes = MeasuredTimes(), []
    values: dict[fx.Node, Any] = {}
    for layer in layers:
        start = _synchronized_now(data)
        inputs, output = layer.forward(values, data)
        times.forward.append(_synchronized_now(data) - start)
        by_node = layer.outputs_by_node(output)
        values |= by_node
        passes.append((inputs, by_node, output))
    gradients: Gradients = {}
    for layer, (inputs, by_node, output) in zip(reversed(layers), reversed(passes), strict=True):
        times.backward.append(_time_backward(layer, inputs, by_node, output, gradients))
    times.backward.reverse()
    return times


def _run_layers_alone(layers: list[_TimedLayer], data: Any, next_pass: Callable[[], None]) -> None:
    values: dict[fx.Node, Any] = {}
    for layer in layers:
        next_pass()
        inputs, output = layer.forward(values, data)
        _synchronized_now(data)
        values |= {
            node: tree_map_only(torch.Tensor, _detach_input, value)
            for node, value in layer.outputs_by_node(output).items()
        }
        next_pass()
        outputs, incoming = _unit_gradients(output)
        wanted = [tensor for tensor in iter_tensors(inputs) if tensor.requires_grad] + layer.parameters
        if outputs and wanted:
            torch.autograd.grad(outputs, wanted, incoming, allow_unused=True)
            _synchronized_now(data)


def _layer_overhead(data: Any) -> tuple[float, float]:
    """The overhead of running a layer as its own module, forward and backward: the time of an empty one."""
    graph = fx.Graph()
    graph.output(graph.placeholder("inputs"))
    empty, one = fx.GraphModule(nn.Module(), graph), torch.ones(1, device=_device_of(data), requires_grad=True)
    forward, backward = [], []
    for _ in range(OVERHEAD_REPEATS):
        start = _synchronized_now(one)
        inputs = tree_map_only(torch.Tensor, _detach_input, one)
        output = empty(inputs).view_as(one)
        middle = _synchronized_now(one)
        torch.autograd.grad([output], [inputs], [one], allow_unused=True)
        forward.append(middle - start)
        backward.append(_synchronized_now(one) - middle)
    return statistics.median(forward), statistics.median(backward)


def _time_backward(
    layer: _TimedLayer, inputs: list[Any], by_node: dict[fx.Node, Any], output: Any, gradients: Gradients
) -> float:
    """Seconds of one layer's backward; adds the gradients of its inputs to `gradients`."""
    outputs, incoming = _output_gradients(by_node, gradients) if not layer.last else _unit_gradients(output)
    wanted = [(slot, tensor) for slot, tensor in _iter_slots(layer.entries, inputs) if tensor.requires_grad]
    targets = [tensor for _, tensor in wanted] + layer.parameters
    if not outputs or not targets:
        return 0.0
    start = _synchronized_now(targets[0])
    computed = torch.autograd.grad(outputs, targets, incoming, allow_unused=True)
    for (slot, _), gradient in zip(wanted, computed, strict=False):
        if gradient is not None:
            gradients[slot] = gradients[slot] + gradient if slot in gradients else gradient
    return _synchronized_now(targets[0]) - start


def _output_gradients(
    by_node: dict[fx.Node, Any], gradients: Gradients
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    slots = list(_iter_slots(list(by_node), list(by_node.values())))
    ready = [(tensor, gradients[slot]) for slot, tensor in slots if slot in gradients and tensor.requires_grad]
    return [tensor for tensor, _ in ready], [gradient for _, gradient in ready]


def _unit_gradients(output: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    outputs = [tensor for tensor in iter_tensors(output) if tensor.requires_grad]
    return outputs, [torch.ones_like(tensor) for tensor in outputs]


def _iter_slots(nodes: list[fx.Node], values: list[Any]) -> Iterator[tuple[tuple[fx.Node, int], torch.Tensor]]:
    for node, value in zip(nodes, values, strict=True):
        for position, tensor in enumerate(iter_tensors(value)):
            yield (node, position), tensor


def _time_step(module: nn.Module, data: Any) -> tuple[float, float]:
    start = _synchronized_now(data)
    output = call_model(module, data)
    middle = _synchronized_now(data)
    outputs, incoming = _unit_gradients(output)
    torch.autograd.grad(outputs, [p for p in module.parameters() if p.requires_grad], incoming, allow_unused=True)
    return middle - start, _synchronized_now(data) - middle


def _detach_input(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _random_batch(chain: LayerChain, batch: int) -> Any:
    """Random values, or zeros where the model takes indices."""
    zeros = chain.inputs.zero_batch(batch, module_device(chain.module))
    return tree_map_only(torch.Tensor, lambda leaf: leaf.normal_() if leaf.is_floating_point() else leaf, zeros)


def _device_of(data: Any) -> torch.device:
    return next(iter_tensors(data)).device


def _synchronized_now(data: Any) -> float:
    device = _device_of(data)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@contextmanager
def _preserve_module(module: nn.Module) -> Iterator[None]:
    if module_device(module).type == "meta":
        raise ModelError("cannot measure a model on meta tensors; derive its profile, or build it on a real device")
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    module.train()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        for submodule, mode in modes:
            submodule.training = mode
        for buffer, before in buffers:
            buffer.copy_(before)
