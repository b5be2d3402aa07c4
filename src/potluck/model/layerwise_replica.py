"""Runs a replica layer by layer, calling back before each layer's forward and when each layer's gradient is ready.

This is how real execution overlaps with transfers: a layer's forward waits for its weights, and its gradient can be
sent while earlier layers are still computing theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from potluck.model.input_spec import InputSpec, call_model
from potluck.model.layer_chain import trace_layers
from potluck.model.model_replica import ModelReplica
from potluck.model.stage_modules import announce_layers

__all__ = ["LayerwiseReplica"]

LayerCallback = Callable[[int], None]


class LayerwiseReplica:
    """Computes gradients of one replica with per-layer callbacks; an untraceable model counts as one long layer."""

    def __init__(self, replica: ModelReplica, inputs: InputSpec | tuple[int, ...]) -> None:
        self._replica = replica
        self._before: LayerCallback = _do_nothing
        self._ready: LayerCallback = _do_nothing
        chain = trace_layers(replica.module, inputs, dtype=replica.layout.dtype)
        self.runs_by_layer = chain.exact
        self._units = replica.layout.split_ranges()
        self._module = announce_layers(chain, self._begin_layer) if chain.exact else replica.module
        self._binding = None if chain.recording is None else chain.recording.binding
        self.flat_gradient = torch.zeros_like(replica.state.params)
        self._unfinished: list[int] = []
        self._next = -1
        self._views: list[tuple[Tensor, int, Tensor]] = self._register_hooks()

    def gradient(
        self,
        inputs: Any,
        targets: Any,
        rng: np.random.Generator | None,
        *,
        before_layer: LayerCallback | None = None,
        after_forward: Callable[[float], None] | None = None,
        layer_ready: LayerCallback | None = None,
    ) -> tuple[Tensor, float]:
        """As ModelReplica.gradient, with callbacks.

        `before_layer` is called before each layer's forward, `after_forward` with the loss, and `layer_ready` when a
        layer's gradient is final, from the last layer to the first.
        """
        replica = self._replica
        replica.module.train()
        self._before, self._ready = before_layer or _do_nothing, layer_ready or _do_nothing
        try:
            if not self.runs_by_layer:
                self._announce_all()
            with replica.forward_context(rng):
                loss = replica.loss(self._forward(inputs), targets)
            if after_forward is not None:
                after_forward(float(loss.detach()))
            self._run_backward(loss)
        finally:
            self._before = self._ready = _do_nothing
        return self.flat_gradient, float(loss.detach())

    def _forward(self, inputs: Any) -> Any:
        if self._binding is None:
            return call_model(self._module, inputs)
        return self._module(*self._binding.arguments(inputs))

    def _announce_all(self) -> None:
        for layer in range(self._replica.layout.layer_count):
            self._before(layer)

    def _begin_layer(self, layer: int) -> None:
        """A layer of the model begins: all of its transfer units must have arrived."""
        for unit in self._units[layer]:
            self._before(unit)

    def _run_backward(self, loss: Tensor) -> None:
        self.flat_gradient.zero_()
        self._unfinished = [0] * len(self._units)
        for _, layer, _ in self._views:
            self._unfinished[layer] += 1
        self._next = len(self._units) - 1
        for param, _, view in self._views:
            param.grad = view
        try:
            torch.autograd.backward(loss)
            self._unfinished = [0] * len(self._units)  # unused parameters never report
            self._report_ready()
        finally:
            for param, _, _ in self._views:
                param.grad = None

    def _register_hooks(self) -> list[tuple[Tensor, int, Tensor]]:
        """Each parameter, its layer, and its view of the flat gradient."""
        replica = self._replica
        views: list[tuple[Tensor, int, Tensor]] = []
        layout, params = replica.layout, dict(replica.module.named_parameters())
        ends = [layout.param_bounds[units.stop] for units in self._units]
        layer = 0
        for entry in layout.params:
            while entry.start >= ends[layer]:
                layer += 1
            param = params[entry.name]
            param.register_post_accumulate_grad_hook(lambda _, layer=layer: self._gradient_accumulated(layer))  # type: ignore[no-untyped-call]
            views.append((param, layer, self.flat_gradient[entry.start : entry.stop].view(entry.shape)))
        return views

    def _gradient_accumulated(self, layer: int) -> None:
        if self._unfinished:
            self._unfinished[layer] -= 1
            self._report_ready()

    def _report_ready(self) -> None:
        """Report layers strictly from the last to the first, even where an earlier layer's gradient is final sooner."""
        while self._next >= 0 and self._unfinished[self._next] <= 0:
            self._next -= 1
            for unit in reversed(self._units[self._next + 1]):
                self._ready(unit)


def _do_nothing(layer: int) -> None:
    pass
