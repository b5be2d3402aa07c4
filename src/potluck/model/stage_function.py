"""Runs a range of layers as a pure function of weights and inputs.

Nothing is changed in place, neither a module's weights nor a version of them, so any stored version
can be used at any time, and a discarded forward pass leaves no trace.
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
    """A forward pass that can still be differentiated: inputs, outputs and the weights it used."""

    outputs: Any
    inputs: Tensors
    leaves: list[Tensor]
    buffers: Tensor

    @property
    def sent_tensors(self) -> Tensors:
        """What crosses to the next stage, detached."""
        return tuple(output.detach() for output in _as_tuple(self.outputs))

    def backward(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensors]:
        """The gradients of the weights (as one vector) and of the inputs, from those of the sent tensors."""
        floats = [output for output in _as_tuple(self.outputs) if output.is_floating_point()]
        pairs = [(output, incoming) for output, incoming in zip(floats, gradients, strict=True) if output.requires_grad]
        return self._take_gradients([output for output, _ in pairs], [incoming for _, incoming in pairs])

    def backward_from_loss(self, loss: Tensor) -> tuple[Tensor, Tensors]:
        """The same, starting from the loss."""
        return self._take_gradients([loss], None)

    def _take_gradients(self, outputs: list[Tensor], incoming: list[Tensor] | None) -> tuple[Tensor, Tensors]:
        inputs = [tensor for tensor in self.inputs if tensor.requires_grad]
        gradients = torch.autograd.grad(
            outputs, [*self.leaves, *inputs], incoming, allow_unused=True, materialize_grads=True
        )  # fmt: skip
        weights = [gradient.reshape(-1) for gradient in gradients[: len(self.leaves)]]
        return torch.cat(weights) if weights else torch.zeros(0), gradients[len(self.leaves) :]


class StageFunction:
    """The layers `first` to `last` of a chain; a lock serialises calls from several threads."""

    def __init__(
        self, chain: LayerChain, layout: WeightLayout, first: int, last: int, has_other_random_ops: bool = False
    ) -> None:
        cuts = [cut for cut in (first - 1, last) if 0 <= cut < len(chain.layers) - 1]
        self._module = copy.deepcopy(build_stages(chain, cuts)[1 if first else 0])
        self._dropouts = make_dropouts_seedable(self._module)
        self._params, self._buffers = _entries_within(layout, first, last)
        self._integers = _integer_buffers(self._module)
        self._has_other_random_ops = has_other_random_ops
        self._has_data = first == 0
        self._lock = threading.Lock()

    def forward(self, params: Tensor, buffers: Tensor, inputs: Tensors, seed: int | None = None) -> ForwardPass:
        """A forward pass in training mode; `seed` is for the layers' own random operations."""
        leaves = [_entry_view(params, entry).detach().requires_grad_() for entry in self._params]
        entered = tuple(self._as_leaf(tensor) for tensor in inputs)
        with self._lock, nullcontext() if seed is None else self._seed_generators(seed):
            outputs, kept = self._call_module(leaves, buffers, entered, training=True)
        return ForwardPass(outputs, entered, leaves, _flatten_buffers(kept, buffers))

    @torch.no_grad()
    def evaluate(self, params: Tensor, buffers: Tensor, inputs: Tensors) -> Any:
        """The outputs in evaluation mode, without gradients."""
        leaves = [_entry_view(params, entry) for entry in self._params]
        with self._lock:
            return self._call_module(leaves, buffers, inputs, training=False)[0]

    def _as_leaf(self, tensor: Tensor) -> Tensor:
        return tensor if self._has_data or not tensor.is_floating_point() else tensor.detach().requires_grad_()

    def _call_module(
        self, leaves: list[Tensor], buffers: Tensor, inputs: Tensors, training: bool
    ) -> tuple[Any, dict[str, Tensor]]:
        kept = {entry.name: self._own_buffer(_entry_view(buffers, entry), entry.name) for entry in self._buffers}
        named = dict(zip((entry.name for entry in self._params), leaves, strict=True))
        self._module.train(training)
        argument = inputs[0] if len(inputs) == 1 else inputs
        return functional_call(self._module, {**named, **kept}, (argument,)), kept

    def _own_buffer(self, view: Tensor, name: str) -> Tensor:
        """A copy for the layer to write to; autograd would track writes to a view as writes to the whole vector.

        Counters are integers in the layer and floats in the vector.
        """
        dtype = self._integers.get(name)
        return view.clone() if dtype is None else view.round().to(dtype)

    def _seed_generators(self, seed: int) -> AbstractContextManager[object]:
        generator = torch.Generator().manual_seed(seed)
        for dropout in self._dropouts:
            dropout.generator = generator
        return SeededRandomMode(seed) if self._has_other_random_ops else nullcontext()


class StageFunctions:
    """The stage functions of a chain, each built on first use."""

    def __init__(self, chain: LayerChain, inputs: Tensor) -> None:
        self.chain = chain
        self.layout = WeightLayout.of_module(
            chain.module, [(layer.parameters, layer.buffers) for layer in chain.layers]
        )
        self.is_random, self._has_other_random_ops = _find_random_ops(chain.module, inputs)
        self._functions: dict[tuple[int, int], StageFunction] = {}

    def for_layers(self, first: int, last: int) -> StageFunction:
        if (first, last) not in self._functions:
            self._functions[first, last] = StageFunction(
                self.chain, self.layout, first, last, self._has_other_random_ops
            )
        return self._functions[first, last]

    @property
    def whole_model(self) -> StageFunction:
        return self.for_layers(0, self.layout.layer_count - 1)


def _find_random_ops(module: nn.Module, inputs: Tensor) -> tuple[bool, bool]:
    """Whether the model is random in training, and whether anything but plain dropout layers is."""
    probe = copy.deepcopy(module).train()
    dropouts = make_dropouts_seedable(probe)
    for dropout in dropouts:
        dropout.generator = torch.Generator()
    with torch.no_grad(), SeededRandomMode(0) as random_mode:
        try:
            probe(inputs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            reason, shape = str(error).strip().splitlines()[0], tuple(inputs.shape[1:])
            raise ModelError(f"the model does not fit the data (inputs of shape {shape}): {reason}") from error
    return bool(dropouts) or random_mode.used_random, random_mode.used_random


def _entries_within(layout: WeightLayout, first: int, last: int) -> tuple[list[TensorEntry], list[TensorEntry]]:
    """The entries of some layers, with offsets relative to the first of these layers."""
    params, buffers = layout.layer_slices(first, last)
    return _shift_entries(layout.params, params), _shift_entries(layout.buffers, buffers)


def _shift_entries(entries: Sequence[TensorEntry], bounds: slice) -> list[TensorEntry]:
    inside = [entry for entry in entries if bounds.start <= entry.start < bounds.stop]
    shift = bounds.start
    return [TensorEntry(entry.name, entry.shape, entry.start - shift, entry.stop - shift) for entry in inside]


def _entry_view(vector: Tensor, entry: TensorEntry) -> Tensor:
    return vector[entry.start : entry.stop].view(entry.shape)


def _flatten_buffers(kept: dict[str, Tensor], like: Tensor) -> Tensor:
    return torch.cat([tensor.reshape(-1).to(like.dtype) for tensor in kept.values()]) if kept else like


def _integer_buffers(module: nn.Module) -> dict[str, torch.dtype]:
    return {name: tensor.dtype for name, tensor in module.named_buffers() if not tensor.is_floating_point()}


def _as_tuple(outputs: Any) -> Tensors:
    return outputs if isinstance(outputs, tuple) else (outputs,)
