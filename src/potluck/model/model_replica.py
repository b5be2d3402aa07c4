"""A working copy of the model: load weights into it, compute gradients with it. One per thread, reused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from potluck.model.model_state import WeightLayout, bind_views

__all__ = ["Loss", "ModelReplica", "ModelTemplate", "SeededRandomMode"]

Loss = Callable[[Any, Tensor], Tensor]


class ModelTemplate(NamedTuple):
    """What a replica is made from; the module itself is never trained."""

    module: nn.Module
    layout: WeightLayout
    loss: Loss

    def new_replica(self) -> ModelReplica:
        return ModelReplica(self.module, self.layout, self.loss)


class ModelReplica:
    """A model whose parameters are views of one flat vector, `state.params`."""

    def __init__(self, module: nn.Module, layout: WeightLayout, loss: Loss) -> None:
        self.module = copy.deepcopy(module)
        self.dropouts = make_dropouts_seedable(self.module)
        self.has_other_random_ops = True  # whether anything but these layers uses random numbers
        self.layerwise: object | None = None  # its LayerwiseReplica, created on first use
        self.workspace: object | None = None  # its WidthWorkspace, created on first use
        self.layout = layout
        self.loss = loss
        self.state = bind_views(self.module, layout)
        params = dict(self.module.named_parameters())
        buffers = dict(self.module.named_buffers())
        self._params = [params[entry.name] for entry in layout.params]
        self._gradient = torch.empty_like(self.state.params)
        self._anchor = torch.empty_like(self.state.params)
        self._counters = [
            (buffers[entry.name], entry)
            for entry in layout.buffers
            if entry.name in buffers and buffers[entry.name].dtype != layout.dtype
        ]

    def load_layers(self, first: int, last: int, params: Tensor, buffers: Tensor) -> None:
        """Load the weights and buffers of the layers `first` to `last`."""
        into_params, into_buffers = self.layout.layer_slices(first, last)
        self.state.params[into_params].copy_(params)
        if len(buffers):
            self.state.buffers[into_buffers].copy_(buffers)

    def sync_counters(self) -> None:
        """After loading: copy the counters (buffers of another dtype), which cannot be views, into the module."""
        for tensor, entry in self._counters:
            values = self.state.buffers[entry.start : entry.stop].view(entry.shape)
            tensor.copy_(values if tensor.is_floating_point() else values.round())

    def copy_buffers(self) -> Tensor:
        """A copy of the current buffers."""
        for tensor, entry in self._counters:
            self.state.buffers[entry.start : entry.stop].copy_(tensor.reshape(-1))
        return self.state.buffers.clone() if len(self.state.buffers) else self.state.buffers

    def buffer_change(self, before: Tensor) -> Tensor:
        """How the buffers have changed since `before`."""
        return self.copy_buffers().sub_(before) if len(before) else before

    def gradient(self, inputs: Tensor, targets: Tensor, rng: np.random.Generator | None = None) -> tuple[Tensor, float]:
        """The loss's gradient as one flat vector, and the loss; `rng` seeds the model's own random ops (dropout).

        The vector belongs to the replica and is valid until the next call.
        """
        if not self.module.training:
            self.module.train()
        with self.seeded_random(rng):
            loss = self.loss(self.module(inputs), targets)
        gradients = torch.autograd.grad(loss, self._params, allow_unused=True, materialize_grads=True)
        torch.cat([gradient.reshape(-1) for gradient in gradients], out=self._gradient)
        return self._gradient, float(loss.detach())

    def seeded_random(self, rng: np.random.Generator | None) -> AbstractContextManager[object]:
        """A context in which the model's random numbers come from `rng`."""
        return nullcontext() if rng is None else self._seed_generators(int(rng.integers(2**62)))

    def _seed_generators(self, seed: int) -> AbstractContextManager[object]:
        generator = torch.Generator().manual_seed(seed) if self.dropouts else None
        for dropout in self.dropouts:
            dropout.generator = generator
        return SeededRandomMode(seed) if self.has_other_random_ops else nullcontext()

    def copy_anchor(self) -> Tensor:
        """A copy of the current parameters; it belongs to the replica and is valid until the next call."""
        return self._anchor.copy_(self.state.params)

    @torch.no_grad()
    def outputs(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterable[tuple[Any, Tensor]]:
        """The model's outputs in evaluation mode, with the targets."""
        self.module.eval()
        for inputs, targets in batches:
            yield self.module(inputs), targets


class SeededDropout(nn.Dropout):
    """Dropout with its own generator; unlike SeededRandomMode, which serves every operation, this costs nothing."""

    generator: torch.Generator | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.generator is None or not self.training or not 0 < self.p < 1:
            return super().forward(inputs)
        kept = torch.empty_like(inputs).bernoulli_(1 - self.p, generator=self.generator)
        return inputs * kept.div_(1 - self.p)


def make_dropouts_seedable(module: nn.Module) -> list[SeededDropout]:
    """Turn every plain dropout layer into a SeededDropout, and return them."""
    dropouts = []
    for layer in module.modules():
        if type(layer) is nn.Dropout:
            layer.__class__ = SeededDropout
            dropouts.append(layer)
    return dropouts  # type: ignore[return-value]


class SeededRandomMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives every random operation of this thread a seeded generator; torch's global one is shared by all threads."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(seed)
        self.used_random: bool = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags:
            func = _with_generator(func)
            if kwargs.get("generator") is None:
                self.used_random = True
                if _takes_generator(func):
                    kwargs["generator"] = self._generator
        return func(*args, **kwargs)


def _takes_generator(func: Any) -> bool:
    return any(argument.name == "generator" for argument in func._schema.arguments)


def _with_generator(func: Any) -> Any:
    """The overload of an operation that takes a generator, if there is one (`rand` has a separate one)."""
    if _takes_generator(func):
        return func
    name = func._overloadname
    wanted = "generator" if name == "default" else f"{name}_generator"
    packet = func.overloadpacket
    return getattr(packet, wanted) if wanted in packet.overloads() else func
