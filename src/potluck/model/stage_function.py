"""A run of layers as a function: numbers and inputs go in, outputs, new buffers and gradients come out.

Nothing is changed in place, neither a module's weights nor a version of them, so any version that someone still holds
can be used at any time, and a forward pass that is thrown away leaves no trace.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from potluck.errors import ModelError
from potluck.model.layer_chain import LayerChain
from potluck.model.model_replica import SeededRandomMode, make_dropouts_seedable
from potluck.model.model_state import TensorEntry, WeightLayout
from potluck.model.stage_modules import build_stages

__all__ = ["ForwardPass", "StageFunction", "StageFunctions"]

Tensors = tuple[Tensor, ...]


@dataclass
class ForwardPass:
    """A forward pass that may still be differentiated: what went in, what came out, and the weights it used."""

    outputs: Any
    inputs: Tensors
    leaves: list[Tensor]
    buffers: Tensor

    @property
    def sent_tensors(self) -> Tensors:
        """What crosses to the next stage, cut off from the graph."""
        return tuple(output.detach() for output in _as_tuple(self.outputs))

    def backward(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensors]:
        """The gradient of the weights as one vector, and of what arrived, from that of what was sent."""
        floats = [output for output in _as_tuple(self.outputs) if output.is_floating_point()]
        pairs = [(output, given) for output, given in zip(floats, gradients, strict=True) if output.requires_grad]
        return self._take_gradients([output for output, _ in pairs], [given for _, given in pairs])

    def backward_from_loss(self, loss: Tensor) -> tuple[Tensor, Tensors]:
        """The same from a loss."""
        return self._take_gradients([loss], None)

    def _take_gradients(self, outputs: list[Tensor], given: list[Tensor] | None) -> tuple[Tensor, Tensors]:
        wanted = [tensor for tensor in self.inputs if tensor.requires_grad]
        found = torch.autograd.grad(
            outputs, [*self.leaves, *wanted], given, allow_unused=True, materialize_grads=True
        )  # fmt: skip
        own = [gradient.reshape(-1) for gradient in found[: len(self.leaves)]]
        return torch.cat(own) if own else torch.zeros(0), found[len(self.leaves) :]


class StageFunction:
    """The layers `first` to `last` of a chain; calls are made one at a time, whichever thread they come from."""

    def __init__(
        self, chain: LayerChain, layout: WeightLayout, first: int, last: int, draws_elsewhere: bool = False
    ) -> None:
        cuts = [cut for cut in (first - 1, last) if 0 <= cut < len(chain.layers) - 1]
        self._module = copy.deepcopy(build_stages(chain, cuts)[1 if first else 0])
        self._dropouts = make_dropouts_seedable(self._module)
        self._params, self._buffers = _entries_within(layout, first, last)
        self._integers = _integer_buffers(self._module)
        self._draws_elsewhere = draws_elsewhere
        self._has_data = first == 0
        self._lock = threading.Lock()

    def forward(self, params: Tensor, buffers: Tensor, arrived: Tensors, seed: int | None = None) -> ForwardPass:
        """One pass in training; `seed` is for what the layers draw themselves."""
        leaves = [_entry_view(params, entry).detach().requires_grad_() for entry in self._params]
        entered = tuple(self._as_leaf(tensor) for tensor in arrived)
        with self._lock, nullcontext() if seed is None else self._seed_generators(seed):
            outputs, kept = self._call_module(leaves, buffers, entered, training=True)
        return ForwardPass(outputs, entered, leaves, _flatten_buffers(kept, buffers))

    @torch.no_grad()
    def evaluate(self, params: Tensor, buffers: Tensor, arrived: Tensors) -> Any:
        """The outputs in evaluation mode."""
        leaves = [_entry_view(params, entry) for entry in self._params]
        with self._lock:
            return self._call_module(leaves, buffers, arrived, training=False)[0]

    def _as_leaf(self, tensor: Tensor) -> Tensor:
        return tensor if self._has_data or not tensor.is_floating_point() else tensor.detach().requires_grad_()

    def _call_module(
        self, leaves: list[Tensor], buffers: Tensor, arrived: Tensors, training: bool
    ) -> tuple[Any, dict[str, Tensor]]:
        kept = {entry.name: self._own_buffer(_entry_view(buffers, entry), entry.name) for entry in self._buffers}
        named = dict(zip((entry.name for entry in self._params), leaves, strict=True))
        self._module.train(training)
        inputs = arrived[0] if len(arrived) == 1 else arrived
        return functional_call(self._module, {**named, **kept}, (inputs,)), kept

    def _own_buffer(self, view: Tensor, name: str) -> Tensor:
        """A copy for the layer to write to, with memory of its own, since autograd watches all views of a vector
        together; counters are whole numbers there and floats in the vector."""
        kind = self._integers.get(name)
        return view.clone() if kind is None else view.round().to(kind)

    def _seed_generators(self, seed: int) -> AbstractContextManager[object]:
        generator = torch.Generator().manual_seed(seed)
        for dropout in self._dropouts:
            dropout.generator = generator
        return SeededRandomMode(seed) if self._draws_elsewhere else nullcontext()


class StageFunctions:
    """The sections of a chain, each made when it is first asked for."""

    def __init__(self, chain: LayerChain, inputs: Tensor) -> None:
        self.chain = chain
        self.layout = WeightLayout.of_module(
            chain.module, [(layer.parameters, layer.buffers) for layer in chain.layers]
        )
        self.is_random, self._draws_elsewhere = _find_random_ops(chain.module, inputs)
        self._made: dict[tuple[int, int], StageFunction] = {}

    def for_layers(self, first: int, last: int) -> StageFunction:
        if (first, last) not in self._made:
            self._made[first, last] = StageFunction(self.chain, self.layout, first, last, self._draws_elsewhere)
        return self._made[first, last]

    @property
    def whole_model(self) -> StageFunction:
        return self.for_layers(0, self.layout.layer_count - 1)


def _find_random_ops(module: nn.Module, inputs: Tensor) -> tuple[bool, bool]:
    """Whether the model draws in training (dropout), and whether anything but plain dropout layers does."""
    rehearsal = copy.deepcopy(module).train()
    dropouts = make_dropouts_seedable(rehearsal)
    for dropout in dropouts:
        dropout.generator = torch.Generator()
    with torch.no_grad(), SeededRandomMode(0) as draws:
        try:
            rehearsal(inputs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            reason, shape = str(error).strip().splitlines()[0], tuple(inputs.shape[1:])
            raise ModelError(f"the model does not fit the data (inputs of shape {shape}): {reason}") from error
    return bool(dropouts) or draws.used_random, draws.used_random


def _entries_within(layout: WeightLayout, first: int, last: int) -> tuple[list[TensorEntry], list[TensorEntry]]:
    """The entries of some layers, counted from the beginning of the first of them."""
    params, buffers = layout.layer_slices(first, last)
    return _shift_entries(layout.params, params), _shift_entries(layout.buffers, buffers)


def _shift_entries(entries: Sequence[TensorEntry], part: slice) -> list[TensorEntry]:
    inside = [entry for entry in entries if part.start <= entry.start < part.stop]
    return [TensorEntry(entry.name, entry.shape, entry.start - part.start, entry.stop - part.start) for entry in inside]


def _entry_view(vector: Tensor, entry: TensorEntry) -> Tensor:
    return vector[entry.start : entry.stop].view(entry.shape)


def _flatten_buffers(kept: dict[str, Tensor], like: Tensor) -> Tensor:
    return torch.cat([tensor.reshape(-1).to(like.dtype) for tensor in kept.values()]) if kept else like


def _integer_buffers(module: nn.Module) -> dict[str, torch.dtype]:
    return {name: tensor.dtype for name, tensor in module.named_buffers() if not tensor.is_floating_point()}


def _as_tuple(outputs: Any) -> Tensors:
    return outputs if isinstance(outputs, tuple) else (outputs,)
