"""Seconds that each layer takes on this device, forward and backward, and what the whole model takes in one go.

Each layer runs as a section of its own on detached inputs, so that its backward can be timed alone; whole steps
are timed in between, so that a drift of the machine touches both alike. The model's buffers, gradients, mode and
the random state are as before afterwards.
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
from potluck.model.layer_chain import LayerChain
from potluck.model.stage_modules import build_layer_range

__all__ = ["MeasuredTimes", "module_device", "time_layers", "time_whole_model"]

OVERHEAD_TRIES = 9

Gradients = dict[tuple[fx.Node, int], torch.Tensor]


@dataclass
class MeasuredTimes:
    """One run: seconds of each layer forward and backward, and of the whole step."""

    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    whole: float = 0.0

    def minus_overhead(self, there: float, back: float) -> MeasuredTimes:
        """The same less what running a layer on its own adds."""
        forward = [max(seconds - there, 0.0) for seconds in self.forward]
        return MeasuredTimes(forward, [max(seconds - back, 0.0) for seconds in self.backward], self.whole)

    @property
    def layers_to_whole(self) -> float:
        """Sum of the layers over the whole step."""
        return sum(self.forward + self.backward) / self.whole


def time_layers(
    chain: LayerChain, batch: int, runs: int, progress: Callable[[int, int], None] | None
) -> list[MeasuredTimes]:
    """`runs` runs, each layer by layer and then as a whole."""
    with _preserve_module(chain.module):
        data = _random_batch(chain, batch)
        sections = [_TimedLayer(chain, layer) for layer in range(len(chain.layers))]
        found = []
        for run in range(runs):
            times = _time_run(sections, data).minus_overhead(*_layer_overhead(data))
            times.whole = sum(_time_step(chain.module, data))
            found.append(times)
            if progress is not None:
                progress(run + 1, runs)
        return found


def time_whole_model(
    chain: LayerChain, batch: int, runs: int, progress: Callable[[int, int], None] | None
) -> list[tuple[float, float]]:
    """Seconds of the whole model, forward and backward, where it cannot be run by layers."""
    with _preserve_module(chain.module):
        data = _random_batch(chain, batch)
        found = []
        for run in range(runs):
            found.append(_time_step(chain.module, data))
            if progress is not None:
                progress(run + 1, runs)
        return found


def module_device(module: nn.Module) -> torch.device:
    """Where the model's parameters are."""
    return next(module.parameters()).device


class _TimedLayer:
    """One layer, ready to run: what it takes, what it hands on, what its backward differentiates."""

    def __init__(self, chain: LayerChain, layer: int) -> None:
        inside = [node for node, place in chain.layer_of.items() if place == layer and not is_ambient(node)]
        sources = {source: None for node in inside for source in node.all_input_nodes if not is_ambient(source)}
        self.entries = [node for node in sources if chain.layer_of[node] < layer]
        self.exits = [node for node in inside if any(chain.layer_of[user] > layer for user in node.users)]
        self.first, self.last = layer == 0, layer == len(chain.layers) - 1
        exits = None if self.last else self.exits
        self.module = build_layer_range(chain, layer, layer, entries=self.entries, exits=exits)
        self.parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def forward(self, values: dict[fx.Node, Any], data: torch.Tensor) -> tuple[list[Any], Any]:
        """What went in (detached) and what came out."""
        taken = [tree_map_only(torch.Tensor, _detach_input, values[node]) for node in self.entries]
        if self.first:
            return taken, self.module(data)
        arrived: tuple[Any, ...] = (tuple(taken),) if len(taken) > 1 else tuple(taken)
        return taken, self.module(*arrived)

    def outputs_by_node(self, made: Any) -> dict[fx.Node, Any]:
        """The values that went out, by the node that made them."""
        if self.last:
            return {}
        return dict(zip(self.exits, made if len(self.exits) != 1 else (made,), strict=True))


def _time_run(sections: list[_TimedLayer], data: torch.Tensor) -> MeasuredTimes:
    times, kept = MeasuredTimes(), []
    values: dict[fx.Node, Any] = {}
    for part in sections:
        start = _synchronized_now(data)
        taken, made = part.forward(values, data)
        times.forward.append(_synchronized_now(data) - start)
        named = part.outputs_by_node(made)
        values |= named
        kept.append((taken, named, made))
    gradients: Gradients = {}
    for part, (taken, named, made) in zip(reversed(sections), reversed(kept), strict=True):
        times.backward.append(_time_backward(part, taken, named, made, gradients))
    times.backward.reverse()
    return times


def _layer_overhead(data: torch.Tensor) -> tuple[float, float]:
    """Seconds that a section costs beyond its work, forward and backward: those of one that does nothing."""
    graph = fx.Graph()
    graph.output(graph.placeholder("arrived"))
    empty, one = fx.GraphModule(nn.Module(), graph), torch.ones(1, device=data.device, requires_grad=True)
    there, back = [], []
    for _ in range(OVERHEAD_TRIES):
        start = _synchronized_now(one)
        taken = tree_map_only(torch.Tensor, _detach_input, one)
        made = empty(taken).view_as(one)
        middle = _synchronized_now(one)
        torch.autograd.grad([made], [taken], [one], allow_unused=True)
        there.append(middle - start)
        back.append(_synchronized_now(one) - middle)
    return statistics.median(there), statistics.median(back)


def _time_backward(
    part: _TimedLayer, taken: list[Any], named: dict[fx.Node, Any], made: Any, gradients: Gradients
) -> float:
    """Seconds of one layer's backward; the gradients of what it took are added to `gradients`."""
    ends, seeds = _output_gradients(named, gradients) if not part.last else _unit_gradients(made)
    wanted = [(slot, tensor) for slot, tensor in _iter_slots(part.entries, taken) if tensor.requires_grad]
    targets = [tensor for _, tensor in wanted] + part.parameters
    if not ends or not targets:
        return 0.0
    start = _synchronized_now(targets[0])
    found = torch.autograd.grad(ends, targets, seeds, allow_unused=True)
    for (slot, _), gradient in zip(wanted, found, strict=False):
        if gradient is not None:
            gradients[slot] = gradients[slot] + gradient if slot in gradients else gradient
    return _synchronized_now(targets[0]) - start


def _output_gradients(named: dict[fx.Node, Any], gradients: Gradients) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    slots = list(_iter_slots(list(named), list(named.values())))
    ready = [(tensor, gradients[slot]) for slot, tensor in slots if slot in gradients and tensor.requires_grad]
    return [tensor for tensor, _ in ready], [gradient for _, gradient in ready]


def _unit_gradients(made: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    ends = [tensor for tensor in iter_tensors(made) if tensor.requires_grad]
    return ends, [torch.ones_like(tensor) for tensor in ends]


def _iter_slots(nodes: list[fx.Node], values: list[Any]) -> Iterator[tuple[tuple[fx.Node, int], torch.Tensor]]:
    for node, value in zip(nodes, values, strict=True):
        for position, tensor in enumerate(iter_tensors(value)):
            yield (node, position), tensor


def _time_step(module: nn.Module, data: torch.Tensor) -> tuple[float, float]:
    start = _synchronized_now(data)
    made = module(data)
    middle = _synchronized_now(data)
    ends, seeds = _unit_gradients(made)
    torch.autograd.grad(ends, [p for p in module.parameters() if p.requires_grad], seeds, allow_unused=True)
    return middle - start, _synchronized_now(data) - middle


def _detach_input(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _random_batch(chain: LayerChain, batch: int) -> torch.Tensor:
    """Noise, or zeros where the model takes indices."""
    size, device = (batch, *chain.shape), module_device(chain.module)
    if chain.dtype.is_floating_point:
        return torch.randn(size, dtype=chain.dtype, device=device)
    return torch.zeros(size, dtype=chain.dtype, device=device)


def _synchronized_now(tensor: torch.Tensor) -> float:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter()


@contextmanager
def _preserve_module(module: nn.Module) -> Iterator[None]:
    if module_device(module).type == "meta":
        raise ModelError("a model on meta tensors cannot be measured: derive its profile, or build it for real")
    modes = [(part, part.training) for part in module.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    module.train()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        for part, mode in modes:
            part.training = mode
        for buffer, before in buffers:
            buffer.copy_(before)
