"""A working copy of the model: load weights into it, compute gradients with it. One per thread, reused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from potluck.model.frozen_weights import FrozenWeights, TensorGuard, copy_sharing_frozen
from potluck.model.indexed_dataset import IndexedDataset, Indices
from potluck.model.input_spec import call_model
from potluck.model.metrics import TaskMetrics
from potluck.model.model_state import WeightLayout, bind_views

__all__ = ["InputCache", "Loss", "ModelReplica", "ModelTemplate", "SeededRandomMode"]

Loss = Callable[[Any, Any], Tensor]
_LOSS_SCALES = (2.0**16, 2.0**12, 2.0**8, 2.0**4, 1.0)  # of float16, in the order in which they are tried


class InputCache(Protocol):
    """What a network is given instead of samples, such as what its frozen first layers make of them."""

    def batch(self, samples: IndexedDataset, indices: Indices) -> tuple[Any, Any]: ...


class ModelTemplate(NamedTuple):
    """What a replica is made from; the module itself is never trained."""

    module: nn.Module
    layout: WeightLayout
    loss: Loss
    frozen: FrozenWeights = FrozenWeights(())
    metrics: TaskMetrics = TaskMetrics()

    def new_replica(self) -> ModelReplica:
        return ModelReplica(self.module, self.layout, self.loss)


class ModelReplica:
    """A model whose parameters are views of one flat vector, `state.params`."""

    def __init__(self, module: nn.Module, layout: WeightLayout, loss: Loss) -> None:
        self.module = copy_sharing_frozen(module, layout)
        self.dropouts = make_dropouts_seedable(self.module)
        self.has_other_random_ops = True  # whether anything but these layers uses random numbers
        self.autocast: torch.dtype | None = None  # what operations are cast to; None where they are not
        self.input_cache: InputCache | None = None  # what the network reads instead of samples
        self.layerwise: object | None = None  # its LayerwiseReplica, created on first use
        self.workspace: object | None = None  # its WidthWorkspace, created on first use
        self.layout = layout
        self.loss = loss
        self.state = bind_views(self.module, layout)
        self.constants = TensorGuard(self.module, layout)
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

    @property
    def needs_all_layers(self) -> bool:
        """Whether it cannot run layer by layer, because what it reads or returns is not what its layers do."""
        return self.input_cache is not None or hasattr(self.module, "begin_turn")

    def begin_turn(self) -> None:
        """Tell the module that the weights of a turn are loaded, if it wants to know."""
        begin = getattr(self.module, "begin_turn", None)
        if begin is not None:
            begin()

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

    def gradient(self, inputs: Any, targets: Any, rng: np.random.Generator | None = None) -> tuple[Tensor, float]:
        """The loss's gradient as one flat vector, and the loss; `rng` seeds the model's own random ops (dropout).

        The vector belongs to the replica and is valid until the next call.
        """
        if not self.module.training:
            self.module.train()
        with self.forward_context(rng):
            loss = self.loss(call_model(self.module, inputs), targets)
        if self.autocast == torch.float16:
            self._scaled_backward(loss)
        else:
            gradients = torch.autograd.grad(loss, self._params, allow_unused=True, materialize_grads=True)
            torch.cat([gradient.to_dense().reshape(-1) for gradient in gradients], out=self._gradient)
        return self._gradient, float(loss.detach())

    def _scaled_backward(self, loss: Tensor) -> None:
        """The gradient of a scaled loss: small numbers would vanish in float16; large ones are tried at less."""
        for scale in _LOSS_SCALES:
            gradients = torch.autograd.grad(
                loss * scale, self._params, allow_unused=True, materialize_grads=True, retain_graph=scale > 1
            )
            torch.cat([gradient.to_dense().reshape(-1) for gradient in gradients], out=self._gradient)
            self._gradient.div_(scale)
            if self._gradient.isfinite().all():
                return

    def forward_context(self, rng: np.random.Generator | None) -> AbstractContextManager[object]:
        """The context of a forward pass: the model's random numbers come from `rng`, in the replica's precision."""
        random = self.seeded_random(rng)
        return random if self.autocast is None else _CastContext(random, self.autocast)

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
    def outputs(self, batches: Iterable[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
        """The model's outputs in evaluation mode, with the targets."""
        self.module.eval()
        for inputs, targets in batches:
            yield call_model(self.module, inputs), targets


class _CastContext(ExitStack):
    """A forward pass in another precision, within another context."""

    def __init__(self, random: AbstractContextManager[object], dtype: torch.dtype) -> None:
        super().__init__()
        self._contexts = (random, torch.autocast("cpu", dtype))

    def __enter__(self) -> _CastContext:
        for context in self._contexts:
            self.enter_context(context)
        return self


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
        if torch.Tag.nondeterministic_seeded in func.tags and not _is_idle_dropout(func, args, kwargs):
            func = _with_generator(func)
            if kwargs.get("generator") is None:
                self.used_random = True
                if _takes_generator(func):
                    kwargs["generator"] = self._generator
        return func(*args, **kwargs)


def _is_idle_dropout(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether it is attention that drops nothing, which torch counts among the random operations, too."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[index] if index < len(args) else kwargs.get("dropout_p", argument.default_value)
            return bool(given == 0)
    return False


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
