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

from potluck.model.replica import Loss, Replica
from potluck.model.state import Layout, State
from potluck.model.submodels.channels import Run
from potluck.model.submodels.narrowing import narrow, pattern
from potluck.model.submodels.selection import Selection
from potluck.model.submodels.subsets import leading, subsets
from potluck.model.submodels.width import Width

__all__ = ["Small", "Smalls", "small_model"]

FEWEST_KEPT = 8
ROOM = 4_000_000  # numbers that narrower networks may hold beyond these: building one takes as long as many steps


class Small(Replica):
    """A replica of the model with fewer channels; it trains like any other."""

    def __init__(self, module: nn.Module, layout: Layout, loss: Loss, scale: Tensor | None) -> None:
        super().__init__(module, layout, loss)
        self._scale = scale
        self._inside = self.numbers.params  # what the module's parameters are views of
        if scale is not None:
            self.numbers = State(self._inside.clone(), self.numbers.buffers)

    def gradient(
        self, inputs: Tensor, targets: Tensor, draws: np.random.Generator | None = None
    ) -> tuple[Tensor, float]:
        if self._scale is None:
            return super().gradient(inputs, targets, draws)
        torch.mul(self.numbers.params, self._scale, out=self._inside)
        gradient, loss = super().gradient(inputs, targets, draws)
        return gradient.mul_(self._scale), loss

    def outputs(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterable[tuple[Any, Tensor]]:
        if self._scale is not None:
            torch.mul(self.numbers.params, self._scale, out=self._inside)
        return super().outputs(batches)

    def borrow(self, selection: Selection, whole: State) -> None:
        """Take a sub-model's numbers over; counters that are not shared need `settle` as ever."""
        selection.params.gather(whole.params, self.numbers.params)
        selection.buffers.gather(whole.buffers, self.numbers.buffers)

    def give_back(self, selection: Selection, whole: State) -> None:
        """Write them back; what the sub-model does not hold stays as it is."""
        selection.params.scatter(self.numbers.params, whole.params)
        selection.buffers.scatter(self.numbers.buffers, whole.buffers)

    def share_counters(self, whole: Replica) -> None:
        """Count in the whole model's own counters (they have no channels), so that none must be copied."""
        for tensor, entry in whole._counters:
            owner, _, name = entry.name.rpartition(".")
            setattr(self.module.get_submodule(owner), name, tensor)


class Smalls:
    """Narrower networks by their counts; those not used for longest make room (`most`: 0 goes by their size)."""

    def __init__(
        self, width: Width, loss: Loss, *, scaled: bool, static: bool = False, of: Replica | None = None, most: int = 0
    ) -> None:
        self.width = width
        self._loss = loss
        self._scaled = scaled
        self._static = static
        self._whole = of
        self._most = most or max(FEWEST_KEPT, ROOM // max(1, width.layout.param_bounds[-1]))
        self._pattern = pattern(width)
        self._built: OrderedDict[tuple[int, ...], Small] = OrderedDict()

    def get(self, counts: tuple[int, ...]) -> Small:
        """The network that keeps so many units of every set; whoever borrows last owns its numbers."""
        if counts not in self._built:
            self._built[counts] = self._build(counts)
            if len(self._built) > self._most:
                self._built.popitem(last=False)
        self._built.move_to_end(counts)
        return self._built[counts]

    def _build(self, counts: tuple[int, ...]) -> Small:
        module = narrow(self.width, self._pattern, counts, static=self._static)
        layout = Layout.of(module, [(layer.parameters, layer.buffers) for layer in self.width.chain.layers])
        small = Small(module, layout, self._loss, _scale(self.width, layout, counts) if self._scaled else None)
        if self._whole is not None:
            small.draws_elsewhere = self._whole.draws_elsewhere
            small.share_counters(self._whole)
        return small


def small_model(width: Width, counts: tuple[int, ...]) -> nn.Module:
    """A model of its own that begins with the leading units of the whole one's.

    A layer with fewer inputs needs larger weights for outputs of the same variance, by the root of the share kept.
    """
    module = narrow(width, pattern(width), counts)
    layout = Layout.of(module, [(layer.parameters, layer.buffers) for layer in width.chain.layers])
    selection = width.select(subsets(width, counts, leading))
    whole, scale = State.of(width.chain.module, width.layout), _scale(width, layout, counts)
    params = selection.params.gather(whole.params)
    numbers = State(params if scale is None else params * scale.sqrt(), selection.buffers.gather(whole.buffers))
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        tensor.data.copy_(numbers.named(layout)[name])
    return module


def _scale(width: Width, layout: Layout, counts: Sequence[int]) -> Tensor | None:
    """What every parameter of the small network is multiplied by; None where nothing is dropped."""
    if tuple(counts) == width.full:
        return None
    made = torch.ones(layout.param_bounds[-1], dtype=layout.dtype)
    for entry in layout.params:
        axes = width.axes.get(entry.name)
        if axes is not None and axes.columns is not None:
            columns = torch.cat([_run_scale(width, run, counts) for run in axes.columns]).to(layout.dtype)
            made[entry.start : entry.stop].view(entry.shape[0], len(columns), -1).mul_(columns[:, None])
    return made


def _run_scale(width: Width, run: Run, counts: Sequence[int]) -> Tensor:
    if run.set is None:
        return torch.ones(run.units * run.features, dtype=torch.float64)
    kept = counts[run.set]
    return torch.full((kept * run.features,), width.sets[run.set].size / kept, dtype=torch.float64)
