"""A narrower network to train in, and the loan of the whole model's numbers to it.

    whole ──gather──▶ small.numbers ──× scale──▶ module ──▶ gradient ──× scale──▶ a step ──scatter──▶ whole

The scale of filter dropout, 1/(share kept) for every channel that a layer takes in, is put into that layer's weights:
the same numbers as scaled activations, for a pass over the weights instead of several over the activations.
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
from potluck.model.submodels.slimmable_model import SlimmableModel
from potluck.model.submodels.submodel_selection import SubmodelSelection
from potluck.model.submodels.unit_subsets import choose_subsets, leading_units

__all__ = ["NarrowReplica", "NarrowReplicaCache", "build_small_model"]

FEWEST_KEPT = 8
ROOM = 4_000_000  # numbers that narrower networks may hold beyond these: building one takes as long as many steps


class NarrowReplica(ModelReplica):
    """A replica of the model with fewer channels; it trains like any other."""

    def __init__(self, module: nn.Module, layout: WeightLayout, loss: Loss, scale: Tensor | None) -> None:
        super().__init__(module, layout, loss)
        self._scale = scale
        self._module_params = self.state.params  # what the module's parameters are views of
        if scale is not None:
            self.state = ModelState(self._module_params.clone(), self.state.buffers)

    def gradient(
        self, inputs: Tensor, targets: Tensor, draws: np.random.Generator | None = None
    ) -> tuple[Tensor, float]:
        if self._scale is None:
            return super().gradient(inputs, targets, draws)
        torch.mul(self.state.params, self._scale, out=self._module_params)
        gradient, loss = super().gradient(inputs, targets, draws)
        return gradient.mul_(self._scale), loss

    def outputs(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterable[tuple[Any, Tensor]]:
        if self._scale is not None:
            torch.mul(self.state.params, self._scale, out=self._module_params)
        return super().outputs(batches)

    def gather_from(self, selection: SubmodelSelection, whole: ModelState) -> None:
        """Take a sub-model's numbers over; counters that are not shared need `settle` as ever."""
        selection.params.gather(whole.params, self.state.params)
        selection.buffers.gather(whole.buffers, self.state.buffers)

    def scatter_to(self, selection: SubmodelSelection, whole: ModelState) -> None:
        """Write them back; what the sub-model does not hold stays as it is."""
        selection.params.scatter(self.state.params, whole.params)
        selection.buffers.scatter(self.state.buffers, whole.buffers)

    def share_counters(self, whole: ModelReplica) -> None:
        """Count in the whole model's own counters (they have no channels), so that none must be copied."""
        for tensor, entry in whole._counters:
            owner, _, name = entry.name.rpartition(".")
            setattr(self.module.get_submodule(owner), name, tensor)


class NarrowReplicaCache:
    """Narrower networks by their counts; those not used for longest make room (`most`: 0 goes by their size)."""

    def __init__(
        self,
        width: SlimmableModel,
        loss: Loss,
        *,
        scaled: bool,
        static: bool = False,
        of: ModelReplica | None = None,
        most: int = 0,
    ) -> None:
        self.slimmable = width
        self._loss = loss
        self._scaled = scaled
        self._static = static
        self._whole = of
        self._max_size = most or max(FEWEST_KEPT, ROOM // max(1, width.layout.param_bounds[-1]))
        self._template = width_agnostic_graph(width)
        self._built: OrderedDict[tuple[int, ...], NarrowReplica] = OrderedDict()

    def get_replica(self, counts: tuple[int, ...]) -> NarrowReplica:
        """The network that keeps so many units of every set; whoever borrows last owns its numbers."""
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
        small = NarrowReplica(
            module, layout, self._loss, _dropout_scale(self.slimmable, layout, counts) if self._scaled else None
        )
        if self._whole is not None:
            small.has_other_random_ops = self._whole.has_other_random_ops
            small.share_counters(self._whole)
        return small


def build_small_model(width: SlimmableModel, counts: tuple[int, ...]) -> nn.Module:
    """A model of its own that begins with the leading units of the whole one's.

    A layer with fewer inputs needs larger weights for outputs of the same variance, by the root of the share kept.
    """
    module = build_narrow_network(width, width_agnostic_graph(width), counts)
    layout = WeightLayout.of_module(module, [(layer.parameters, layer.buffers) for layer in width.chain.layers])
    selection = width.select_units(choose_subsets(width, counts, leading_units))
    whole, scale = ModelState.of_module(width.chain.module, width.layout), _dropout_scale(width, layout, counts)
    params = selection.params.gather(whole.params)
    numbers = ModelState(params if scale is None else params * scale.sqrt(), selection.buffers.gather(whole.buffers))
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        tensor.data.copy_(numbers.named_tensors(layout)[name])
    return module


def _dropout_scale(width: SlimmableModel, layout: WeightLayout, counts: Sequence[int]) -> Tensor | None:
    """What every parameter of the small network is multiplied by; None where nothing is dropped."""
    if tuple(counts) == width.full_counts:
        return None
    made = torch.ones(layout.param_bounds[-1], dtype=layout.dtype)
    for entry in layout.params:
        axes = width.axes.get(entry.name)
        if axes is not None and axes.columns is not None:
            columns = torch.cat([_run_scale(width, run, counts) for run in axes.columns]).to(layout.dtype)
            made[entry.start : entry.stop].view(entry.shape[0], len(columns), -1).mul_(columns[:, None])
    return made


def _run_scale(width: SlimmableModel, run: AxisRun, counts: Sequence[int]) -> Tensor:
    if run.set is None:
        return torch.ones(run.units * run.features, dtype=torch.float64)
    kept = counts[run.set]
    return torch.full((kept * run.features,), width.sets[run.set].size / kept, dtype=torch.float64)
