"""A working copy of the model: numbers are loaded into it, gradients are taken from it; one per thread, reused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from potluck.model.model_state import WeightLayout, bind_views

__all__ = ["Loss", "ModelReplica", "SeededRandomMode"]

Loss = Callable[[Any, Tensor], Tensor]


class ModelReplica:
    """A model whose parameters are views of one flat vector, `numbers.params`."""

    def __init__(self, module: nn.Module, layout: WeightLayout, loss: Loss) -> None:
        self.module = copy.deepcopy(module)
        self.dropouts = make_dropouts_seedable(self.module)
        self.has_other_random_ops = True  # whether anything but these layers may draw
        self.layerwise: object | None = None  # this replica run layer by layer, once that was asked for
        self.workspace: object | None = None  # where parts of it are trained, once that was asked for
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
        """Take over the numbers of the layers `first` to `last`."""
        into_params, into_buffers = self.layout.layer_slices(first, last)
        self.state.params[into_params].copy_(params)
        if len(buffers):
            self.state.buffers[into_buffers].copy_(buffers)

    def sync_counters(self) -> None:
        """After loading: bring the counters, which are no views, up to date."""
        for tensor, entry in self._counters:
            numbers = self.state.buffers[entry.start : entry.stop].view(entry.shape)
            tensor.copy_(numbers if tensor.is_floating_point() else numbers.round())

    def copy_buffers(self) -> Tensor:
        """A copy of the buffers as they are now."""
        for tensor, entry in self._counters:
            self.state.buffers[entry.start : entry.stop].copy_(tensor.reshape(-1))
        return self.state.buffers.clone() if len(self.state.buffers) else self.state.buffers

    def buffer_change(self, before: Tensor) -> Tensor:
        """How the buffers have changed."""
        return self.copy_buffers().sub_(before) if len(before) else before

    def gradient(
        self, inputs: Tensor, targets: Tensor, draws: np.random.Generator | None = None
    ) -> tuple[Tensor, float]:
        """The loss's gradient as one flat vector, and the loss; `draws` seeds what the model itself draws (dropout).

        The vector is the replica's own and holds until the next call.
        """
        if not self.module.training:
            self.module.train()
        with self.seeded_draws(draws):
            loss = self.loss(self.module(inputs), targets)
        gradients = torch.autograd.grad(loss, self._params, allow_unused=True, materialize_grads=True)
        torch.cat([gradient.reshape(-1) for gradient in gradients], out=self._gradient)
        return self._gradient, float(loss.detach())

    def seeded_draws(self, draws: np.random.Generator | None) -> AbstractContextManager[object]:
        """Within this, what the model draws comes from `draws`."""
        return nullcontext() if draws is None else self._seed_generators(int(draws.integers(2**62)))

    def _seed_generators(self, seed: int) -> AbstractContextManager[object]:
        """What the model draws is drawn from this seed."""
        generator = torch.Generator().manual_seed(seed) if self.dropouts else None
        for dropout in self.dropouts:
            dropout.generator = generator
        return SeededRandomMode(seed) if self.has_other_random_ops else nullcontext()

    def copy_anchor(self) -> Tensor:
        """A copy of the parameters as they are now, the replica's own, good until the next call."""
        return self._anchor.copy_(self.state.params)

    @torch.no_grad()
    def outputs(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterable[tuple[Any, Tensor]]:
        """The model's outputs in evaluation mode, beside the targets."""
        self.module.eval()
        for inputs, targets in batches:
            yield self.module(inputs), targets


class SeededDropout(nn.Dropout):
    """Dropout from a generator of its own: what the dispatch mode below does for any operation, at no cost."""

    generator: torch.Generator | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.generator is None or not self.training or not 0 < self.p < 1:
            return super().forward(inputs)
        kept = torch.empty_like(inputs).bernoulli_(1 - self.p, generator=self.generator)
        return inputs * kept.div_(1 - self.p)


def make_dropouts_seedable(module: nn.Module) -> list[SeededDropout]:
    """Make every plain dropout layer one that can be seeded."""
    found = []
    for layer in module.modules():
        if type(layer) is nn.Dropout:
            layer.__class__ = SeededDropout
            found.append(layer)
    return found  # type: ignore[return-value]


class SeededRandomMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives a seeded generator to every operation that draws, in this thread only; torch's global one is shared."""

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
    """The overload of an operation that takes a generator, if there is one (`rand` has it beside the plain one)."""
    if _takes_generator(func):
        return func
    name = func._overloadname
    wanted = "generator" if name == "default" else f"{name}_generator"
    packet = func.overloadpacket
    return getattr(packet, wanted) if wanted in packet.overloads() else func
