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
from potluck.model.chain import Chain
from potluck.model.costs import tensors
from potluck.model.cuts import ambient
from potluck.model.slicing import section

__all__ = ["Times", "device_of", "time_layers", "time_whole"]

OVERHEAD_TRIES = 9

Gradients = dict[tuple[fx.Node, int], torch.Tensor]


@dataclass
class Times:
    """One run: seconds of each layer forward and backward, and of the whole step."""

    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    whole: float = 0.0

    def without(self, there: float, back: float) -> Times:
        """The same less what running a layer on its own adds."""
        forward = [max(seconds - there, 0.0) for seconds in self.forward]
        return Times(forward, [max(seconds - back, 0.0) for seconds in self.backward], self.whole)

    @property
    def ratio(self) -> float:
        """Sum of the layers over the whole step."""
        return sum(self.forward + self.backward) / self.whole


def time_layers(chain: Chain, batch: int, runs: int, progress: Callable[[int, int], None] | None) -> list[Times]:
    """`runs` runs, each layer by layer and then as a whole."""
    with _undisturbed(chain.module):
        data = _sample(chain, batch)
        sections = [_Section(chain, layer) for layer in range(len(chain.layers))]
        found = []
        for run in range(runs):
            times = _run(sections, data).without(*_overhead(data))
            times.whole = sum(_step(chain.module, data))
            found.append(times)
            if progress is not None:
                progress(run + 1, runs)
        return found


def time_whole(
    chain: Chain, batch: int, runs: int, progress: Callable[[int, int], None] | None
) -> list[tuple[float, float]]:
    """Seconds of the whole model, forward and backward, where it cannot be run by layers."""
    with _undisturbed(chain.module):
        data = _sample(chain, batch)
        found = []
        for run in range(runs):
            found.append(_step(chain.module, data))
            if progress is not None:
                progress(run + 1, runs)
        return found


def device_of(module: nn.Module) -> torch.device:
    """Where the model's parameters are."""
    return next(module.parameters()).device


class _Section:
    """One layer, ready to run: what it takes, what it hands on, what its backward differentiates."""

    def __init__(self, chain: Chain, layer: int) -> None:
        inside = [node for node, place in chain.layer_of.items() if place == layer and not ambient(node)]
        sources = {source: None for node in inside for source in node.all_input_nodes if not ambient(source)}
        self.entries = [node for node in sources if chain.layer_of[node] < layer]
        self.exits = [node for node in inside if any(chain.layer_of[user] > layer for user in node.users)]
        self.first, self.last = layer == 0, layer == len(chain.layers) - 1
        exits = None if self.last else self.exits
        self.module = section(chain, layer, layer, entries=self.entries, exits=exits)
        self.parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def forward(self, values: dict[fx.Node, Any], data: torch.Tensor) -> tuple[list[Any], Any]:
        """What went in (detached) and what came out."""
        taken = [tree_map_only(torch.Tensor, _detached, values[node]) for node in self.entries]
        if self.first:
            return taken, self.module(data)
        arrived: tuple[Any, ...] = (tuple(taken),) if len(taken) > 1 else tuple(taken)
        return taken, self.module(*arrived)

    def named(self, made: Any) -> dict[fx.Node, Any]:
        """The values that went out, by the node that made them."""
        if self.last:
            return {}
        return dict(zip(self.exits, made if len(self.exits) != 1 else (made,), strict=True))


def _run(sections: list[_Section], data: torch.Tensor) -> Times:
    times, kept = Times(), []
    values: dict[fx.Node, Any] = {}
    for part in sections:
        start = _now(data)
        taken, made = part.forward(values, data)
        times.forward.append(_now(data) - start)
        named = part.named(made)
        values |= named
        kept.append((taken, named, made))
    gradients: Gradients = {}
    for part, (taken, named, made) in zip(reversed(sections), reversed(kept), strict=True):
        times.backward.append(_backward(part, taken, named, made, gradients))
    times.backward.reverse()
    return times


def _overhead(data: torch.Tensor) -> tuple[float, float]:
    """Seconds that a section costs beyond its work, forward and backward: those of one that does nothing."""
    graph = fx.Graph()
    graph.output(graph.placeholder("arrived"))
    empty, one = fx.GraphModule(nn.Module(), graph), torch.ones(1, device=data.device, requires_grad=True)
    there, back = [], []
    for _ in range(OVERHEAD_TRIES):
        start = _now(one)
        taken = tree_map_only(torch.Tensor, _detached, one)
        made = empty(taken).view_as(one)
        middle = _now(one)
        torch.autograd.grad([made], [taken], [one], allow_unused=True)
        there.append(middle - start)
        back.append(_now(one) - middle)
    return statistics.median(there), statistics.median(back)


def _backward(part: _Section, taken: list[Any], named: dict[fx.Node, Any], made: Any, gradients: Gradients) -> float:
    """Seconds of one layer's backward; the gradients of what it took are added to `gradients`."""
    ends, seeds = _seeds(named, gradients) if not part.last else _ones(made)
    wanted = [(slot, tensor) for slot, tensor in _slots(part.entries, taken) if tensor.requires_grad]
    targets = [tensor for _, tensor in wanted] + part.parameters
    if not ends or not targets:
        return 0.0
    start = _now(targets[0])
    found = torch.autograd.grad(ends, targets, seeds, allow_unused=True)
    for (slot, _), gradient in zip(wanted, found, strict=False):
        if gradient is not None:
            gradients[slot] = gradients[slot] + gradient if slot in gradients else gradient
    return _now(targets[0]) - start


def _seeds(named: dict[fx.Node, Any], gradients: Gradients) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    slots = list(_slots(list(named), list(named.values())))
    ready = [(tensor, gradients[slot]) for slot, tensor in slots if slot in gradients and tensor.requires_grad]
    return [tensor for tensor, _ in ready], [gradient for _, gradient in ready]


def _ones(made: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    ends = [tensor for tensor in tensors(made) if tensor.requires_grad]
    return ends, [torch.ones_like(tensor) for tensor in ends]


def _slots(nodes: list[fx.Node], values: list[Any]) -> Iterator[tuple[tuple[fx.Node, int], torch.Tensor]]:
    for node, value in zip(nodes, values, strict=True):
        for position, tensor in enumerate(tensors(value)):
            yield (node, position), tensor


def _step(module: nn.Module, data: torch.Tensor) -> tuple[float, float]:
    start = _now(data)
    made = module(data)
    middle = _now(data)
    ends, seeds = _ones(made)
    torch.autograd.grad(ends, [p for p in module.parameters() if p.requires_grad], seeds, allow_unused=True)
    return middle - start, _now(data) - middle


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _sample(chain: Chain, batch: int) -> torch.Tensor:
    """Noise, or zeros where the model takes indices."""
    size, device = (batch, *chain.shape), device_of(chain.module)
    if chain.dtype.is_floating_point:
        return torch.randn(size, dtype=chain.dtype, device=device)
    return torch.zeros(size, dtype=chain.dtype, device=device)


def _now(tensor: torch.Tensor) -> float:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter()


@contextmanager
def _undisturbed(module: nn.Module) -> Iterator[None]:
    if device_of(module).type == "meta":
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
