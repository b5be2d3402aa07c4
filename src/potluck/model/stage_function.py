"""Runs a range of layers as a pure function of weights and inputs.

Nothing is changed in place, neither a module's weights nor a version of them, so any stored version
can be used at any time, and a discarded forward pass leaves no trace.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from potluck.model.frozen_weights import TensorGuard, copy_sharing_frozen
from potluck.model.input_spec import InputBinding, call_model, misfit_error
from potluck.model.layer_chain import LayerChain
from potluck.model.model_replica import SeededRandomMode, make_dropouts_seedable
from potluck.model.model_state import TensorEntry, WeightLayout
from potluck.model.stage_modules import build_announcing_stage

__all__ = ["ForwardPass", "StageFunction", "StageFunctions"]

Tensors = tuple[Tensor, ...]
LayerCallback = Callable[[], None]


class _LayerAnnouncer:
    """Calls back exactly once for each layer of a pass."""

    def __init__(self, layers: int, callback: LayerCallback) -> None:
        self._left = layers
        self._callback = callback

    def begin_layer(self) -> None:
        if self._left:
            self._left -= 1
            self._callback()

    def begin_remaining(self) -> None:
        while self._left:
            self.begin_layer()


@dataclass
class ForwardPass:
    """A forward pass that can still be differentiated: inputs, outputs and the weights it used."""

    outputs: Any
    inputs: Tensors
    leaves: list[Tensor]
    buffers: Tensor
    leaf_layers: Sequence[int] = ()  # the layer of each leaf, counted from the first one of the stage
    layer_count: int = 1

    @property
    def sent_tensors(self) -> Tensors:
        """What crosses to the next stage, detached."""
        return tuple(output.detach() for output in _as_tuple(self.outputs))

    def backward(
        self, gradients: Sequence[Tensor], before_layer: LayerCallback | None = None
    ) -> tuple[Tensor, Tensors]:
        """The gradients of the weights (as one vector) and of the inputs, from those of the sent tensors.

        `before_layer` is called as each layer begins, from the last to the first.
        """
        floats = [output for output in _as_tuple(self.outputs) if output.is_floating_point()]
        pairs = [(output, incoming) for output, incoming in zip(floats, gradients, strict=True) if output.requires_grad]
        with self._announce_backward(before_layer):
            return self._take_gradients([output for output, _ in pairs], [incoming for _, incoming in pairs])

    def backward_from_loss(self, loss: Tensor, before_layer: LayerCallback | None = None) -> tuple[Tensor, Tensors]:
        """The same, starting from the loss."""
        with self._announce_backward(before_layer):
            return self._take_gradients([loss], None)

    @contextmanager
    def _announce_backward(self, before_layer: LayerCallback | None) -> Iterator[None]:
        """Call back as each layer begins, which is when all gradients of the layer after it are complete."""
        if before_layer is None:
            yield
            return
        announcer, pending, current = _LayerAnnouncer(self.layer_count, before_layer), Counter(self.leaf_layers), []
        current.append(self.layer_count - 1)
        announcer.begin_layer()

        def complete_leaf(layer: int) -> None:
            pending[layer] -= 1
            while current[0] > 0 and pending[current[0]] <= 0:
                current[0] -= 1
                announcer.begin_layer()

        hooks = [
            leaf.register_hook(lambda gradient, layer=layer: complete_leaf(layer))  # type: ignore[no-untyped-call]
            for leaf, layer in zip(self.leaves, self.leaf_layers, strict=True)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        announcer.begin_remaining()

    def _take_gradients(self, outputs: list[Tensor], incoming: list[Tensor] | None) -> tuple[Tensor, Tensors]:
        inputs = [tensor for tensor in self.inputs if tensor.requires_grad]
        sources = [*self.leaves, *inputs]
        if not outputs or not sources:  # frozen layers, or layers whose outputs depend on no weight and no input
            gradients = tuple(torch.zeros_like(source) for source in sources)
        else:
            gradients = torch.autograd.grad(outputs, sources, incoming, allow_unused=True, materialize_grads=True)
        weights = [gradient.to_dense().reshape(-1) for gradient in gradients[: len(self.leaves)]]
        return torch.cat(weights) if weights else torch.zeros(0), gradients[len(self.leaves) :]


class StageFunction:
    """The layers `first` to `last` of a chain; a lock serialises calls from several threads."""

    def __init__(
        self, chain: LayerChain, layout: WeightLayout, first: int, last: int, has_other_random_ops: bool = False
    ) -> None:
        self._module = copy_sharing_frozen(build_announcing_stage(chain, first, last, self._begin_layer), layout)
        self._announcer: _LayerAnnouncer | None = None
        self._layer_count = last + 1 - first
        self._constants = TensorGuard(self._module, layout)
        self._dropouts = make_dropouts_seedable(self._module)
        self._params, self._buffers = _entries_within(layout, first, last)
        starts = [bound - layout.param_bounds[first] for bound in layout.param_bounds[first + 1 : last + 1]]
        self._leaf_layers = [bisect_right(starts, entry.start) for entry in self._params]
        self._integers = _integer_buffers(self._module)
        self._has_other_random_ops = has_other_random_ops
        self._data = chain.inputs if first == 0 else None
        self._binding = None if last == len(chain.layers) - 1 or chain.recording is None else chain.recording.binding
        self._lock = threading.Lock()
        self.runs_by_layer = self._layer_count < len(chain.layers)

    def forward(
        self,
        params: Tensor,
        buffers: Tensor,
        inputs: Tensors,
        seed: int | None = None,
        before_layer: LayerCallback | None = None,
    ) -> ForwardPass:
        """A forward pass in training mode; `seed` is for the layers' own random operations.

        `before_layer` is called as each layer begins, unless the stage is the whole model, which runs unchanged.
        """
        leaves = [_entry_view(params, entry).detach().requires_grad_() for entry in self._params]
        entered = tuple(self._as_leaf(tensor) for tensor in inputs)
        with self._lock, nullcontext() if seed is None else self._seed_generators(seed):
            with self._announce_forward(before_layer):
                outputs, kept = self._call_module(leaves, buffers, entered, training=True)
            self._constants.check()
        kept_buffers = _flatten_buffers(kept, buffers)
        return ForwardPass(outputs, entered, leaves, kept_buffers, self._leaf_layers, self._layer_count)

    @contextmanager
    def _announce_forward(self, before_layer: LayerCallback | None) -> Iterator[None]:
        if before_layer is None or not self.runs_by_layer:
            yield
            return
        self._announcer = _LayerAnnouncer(self._layer_count, before_layer)
        try:
            yield
            self._announcer.begin_remaining()
        finally:
            self._announcer = None

    def _begin_layer(self, layer: int) -> None:
        if self._announcer is not None:
            self._announcer.begin_layer()

    @torch.no_grad()
    def evaluate(self, params: Tensor, buffers: Tensor, inputs: Tensors) -> Any:
        """The outputs in evaluation mode, without gradients."""
        leaves = [_entry_view(params, entry) for entry in self._params]
        with self._lock:
            return self._call_module(leaves, buffers, inputs, training=False)[0]

    def _as_leaf(self, tensor: Tensor) -> Tensor:
        return tensor if self._data or not tensor.is_floating_point() else tensor.detach().requires_grad_()

    def _call_module(
        self, leaves: list[Tensor], buffers: Tensor, inputs: Tensors, training: bool
    ) -> tuple[Any, dict[str, Tensor]]:
        kept = {entry.name: self._own_buffer(_entry_view(buffers, entry), entry.name) for entry in self._buffers}
        named = dict(zip((entry.name for entry in self._params), leaves, strict=True))
        self._module.train(training)
        return self._call_with(inputs, {**named, **kept}), kept

    def _call_with(self, tensors: Tensors, state: dict[str, Tensor]) -> Any:
        if self._data is None:
            return functional_call(self._module, state, (tensors[0] if len(tensors) == 1 else tensors,))
        inputs = self._data.unflatten(tensors)
        if self._binding is not None:  # a graph takes keyword arguments by position too
            return functional_call(self._module, state, self._binding.arguments(inputs))
        binding = InputBinding.of_inputs(self._module, inputs)
        arguments = binding.arguments(inputs)
        if binding.keywords:
            return functional_call(self._module, state, (), dict(zip(binding.keywords, arguments, strict=True)))
        return functional_call(self._module, state, arguments)

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

    def __init__(self, chain: LayerChain, inputs: Any) -> None:
        self.chain = chain
        self.layout = WeightLayout.of_chain(chain)
        self.is_random, self._has_other_random_ops = _find_random_ops(chain.module, self.layout, inputs)
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


def _find_random_ops(module: nn.Module, layout: WeightLayout, inputs: Any) -> tuple[bool, bool]:
    """Whether the model is random in training, and whether anything but plain dropout layers is."""
    probe = copy_sharing_frozen(module, layout).train()
    dropouts = make_dropouts_seedable(probe)
    for dropout in dropouts:
        dropout.generator = torch.Generator()
    with torch.no_grad(), SeededRandomMode(0) as random_mode:
        try:
            call_model(probe, inputs)
        except Exception as error:  # the user's model may raise anything
            raise misfit_error(error, inputs) from error
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
