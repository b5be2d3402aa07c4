"""A replica with fewer channels, which trains a sub-model with the whole model's weights.

    whole ──gather──▶ narrow.state ──× scale──▶ module ──▶ gradient ──× scale──▶ a step ──scatter──▶ whole

Filter dropout scales every input channel of a layer by 1/(fraction kept). The scale is applied to the layer's weights:
the same result as scaled activations, for one pass over the weights instead of several over the activations.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from potluck.model.model_replica import Loss, ModelReplica
from potluck.model.model_state import ModelState, WeightLayout
from potluck.model.submodels.channel_sets import AxisRun
from potluck.model.submodels.narrow_network import build_narrow_network, width_agnostic_graph
from potluck.model.submodels.slimmable_model import SlimmableModel, choose_subsets, leading_units
from potluck.model.submodels.submodel_selection import SubmodelSelection

__all__ = ["NarrowReplica", "NarrowReplicaCache", "build_small_model"]

MIN_CACHED_REPLICAS = 8
CACHED_PARAMETERS = 4_000_000  # in all cached replicas: building one takes as long as many steps


class NarrowReplica(ModelReplica):
    """A replica of the model with fewer channels; it is used like any other."""

    def __init__(self, module: nn.Module, layout: WeightLayout, loss: Loss, scale: Tensor | None) -> None:
        super().__init__(module, layout, loss)
        self._scale = scale
        self._module_params = self.state.params  # what the module's parameters are views of
        if scale is not None:
            self.state = ModelState(self._module_params.clone(), self.state.buffers)

    def gradient(self, inputs: Tensor, targets: Tensor, rng: np.random.Generator | None = None) -> tuple[Tensor, float]:
        if self._scale is None:
            return super().gradient(inputs, targets, rng)
        torch.mul(self.state.params, self._scale, out=self._module_params)
        gradient, loss = super().gradient(inputs, targets, rng)
        return gradient.mul_(self._scale), loss

    def outputs(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterable[tuple[Any, Tensor]]:
        if self._scale is not None:
            torch.mul(self.state.params, self._scale, out=self._module_params)
        return super().outputs(batches)

    def gather_from(self, selection: SubmodelSelection, whole: ModelState) -> None:
        """Load a sub-model's weights and buffers; counters that are not shared still need `sync_counters`."""
        selection.params.gather(whole.params, self.state.params)
        selection.buffers.gather(whole.buffers, self.state.buffers)

    def scatter_to(self, selection: SubmodelSelection, whole: ModelState) -> None:
        """Write them back; the rest of the whole model is unchanged."""
        selection.params.scatter(self.state.params, whole.params)
        selection.buffers.scatter(self.state.buffers, whole.buffers)

    def share_counters(self, whole: ModelReplica) -> None:
        """Use the whole model's counters, which have no channels, so that they need no copying."""
        for tensor, entry in whole._counters:
            owner, _, name = entry.name.rpartition(".")
            setattr(self.module.get_submodule(owner), name, tensor)


class NarrowReplicaCache:
    """Narrow replicas by their counts; the least recently used is dropped beyond `most` (0: by the model's size)."""

    def __init__(
        self,
        slimmable: SlimmableModel,
        loss: Loss,
        *,
        scaled: bool,
        static: bool = False,
        whole: ModelReplica | None = None,
        most: int = 0,
    ) -> None:
        self.slimmable = slimmable
        self._loss = loss
        self._scaled = scaled
        self._static = static
        self._whole = whole
        parameters = max(1, slimmable.layout.param_bounds[-1])
        self._max_size = most or max(MIN_CACHED_REPLICAS, CACHED_PARAMETERS // parameters)
        self._template = width_agnostic_graph(slimmable)
        self._built: OrderedDict[tuple[int, ...], NarrowReplica] = OrderedDict()

    def get_replica(self, counts: tuple[int, ...]) -> NarrowReplica:
        """The replica that keeps this many units of every set; valid until the next call with these counts."""
        if counts not in self._built:
            self._built[counts] = self._build_replica(counts)
            if len(self._built) > self._max_size:
                self._built.popitem(last=False)
        self._built.move_to_end(counts)
        return self._built[counts]

    def _build_replica(self, counts: tuple[int, ...]) -> NarrowReplica:
        module = build_narrow_network(self.slimmable, self._template, counts, static=self._static)
        layout = WeightLayout.of_module(
            module, [(layer.parameters, layer.buffers) for layer in self.slimmable.chain.layers]
        )
        narrow = NarrowReplica(
            module, layout, self._loss, _dropout_scale(self.slimmable, layout, counts) if self._scaled else None
        )
        if self._whole is not None:
            narrow.has_other_random_ops = self._whole.has_other_random_ops
            narrow.share_counters(self._whole)
        return narrow


def build_small_model(slimmable: SlimmableModel, counts: tuple[int, ...]) -> nn.Module:
    """A separate smaller model, initialised with the leading units of the whole one.

    A layer with fewer inputs needs larger weights for the same output variance, by the root of the fraction kept.
    """
    module = build_narrow_network(slimmable, width_agnostic_graph(slimmable), counts)
    layout = WeightLayout.of_module(module, [(layer.parameters, layer.buffers) for layer in slimmable.chain.layers])
    selection = slimmable.select_units(choose_subsets(slimmable, counts, leading_units))
    whole = ModelState.of_module(slimmable.chain.module, slimmable.layout)
    scale = _dropout_scale(slimmable, layout, counts)
    params = selection.params.gather(whole.params)
    state = ModelState(params if scale is None else params * scale.sqrt(), selection.buffers.gather(whole.buffers))
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        tensor.data.copy_(state.named_tensors(layout)[name])
    return module


def _dropout_scale(slimmable: SlimmableModel, layout: WeightLayout, counts: Sequence[int]) -> Tensor | None:
    """The factor on every parameter of the narrow network; None if nothing is dropped."""
    if tuple(counts) == slimmable.full_counts:
        return None
    scale = torch.ones(layout.param_bounds[-1], dtype=layout.dtype)
    for entry in layout.params:
        axes = slimmable.axes.get(entry.name)
        if axes is not None and axes.inputs is not None:
            inputs = torch.cat([_run_scale(slimmable, run, counts) for run in axes.inputs]).to(layout.dtype)
            before = 1 if axes.inputs_first else entry.shape[0]
            scale[entry.start : entry.stop].view(before, len(inputs), -1).mul_(inputs[:, None])
    return scale


def _run_scale(slimmable: SlimmableModel, run: AxisRun, counts: Sequence[int]) -> Tensor:
    if run.set is None:
        return torch.ones(run.units * run.features, dtype=torch.float64)
    kept = counts[run.set]
    return torch.full((kept * run.features,), slimmable.sets[run.set].size / kept, dtype=torch.float64)
