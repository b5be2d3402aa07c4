"""Chooses the group of each channel beyond the trunk by its contribution to the classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model.decoupled.network_layers import NetworkLayer, channel_graph, run_in_eval_mode, run_layers
from potluck.planning.groups import ChannelGraph, Groups, OwnerChoice, assign_evenly

__all__ = ["Measure", "attribution_choice", "channel_scores", "pooled_features"]

Measure = Literal["gradient", "activation"]


def attribution_choice(
    layers: Sequence[NetworkLayer],
    end: int,
    groups: Groups,
    samples: Iterable[tuple[Tensor, Tensor]],
    measure: Measure = "gradient",
) -> OwnerChoice:
    """Channels beyond the trunk's `end` go evenly to the groups, each to the one whose classes it serves most."""
    scores = channel_scores(layers, end, samples, measure)

    def choose(index: int, sets: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
        own = scores[torch.from_numpy(sets)]
        relative = own / own.mean(dim=0).clamp_min(1e-12)  # every class counts the same
        gains = torch.stack([relative[:, list(classes)].mean(dim=1) for classes in groups], dim=1)
        return assign_evenly(gains.double().numpy(), sizes)

    return choose


def channel_scores(
    layers: Sequence[NetworkLayer], end: int, samples: Iterable[tuple[Tensor, Tensor]], measure: Measure = "gradient"
) -> Tensor:
    """A table (channel sets, classes) of the mean of |Σ A · ∂z/∂A| over a class's samples.

    A is the channel's activation map as a layer that mixes channels receives it, and z the logit of the sample's class;
    the measure "activation" is Σ A. The effects of all maps of a set are added.
    """
    graph, classes = channel_graph(layers), layers[-1].outputs
    sums = torch.zeros(1 + max(int(sets.max()) for sets in graph.channel_sets), classes)
    counts = torch.zeros(classes)
    captured = _captured_layers(graph, end)
    for inputs, targets in samples:
        counts += torch.bincount(targets, minlength=classes)
        for index, effects in _channel_effects(layers, captured, inputs, targets, measure).items():
            by_class = torch.zeros(effects.shape[1], classes).index_add_(1, targets, effects.T)
            sums.index_add_(0, torch.from_numpy(graph.channel_sets[index]), by_class)
    missing = torch.nonzero(counts == 0).reshape(-1).tolist()
    if missing:
        raise ModelError(f"no sample of class {missing[0]} to attribute channels with; provide samples of every class")
    return sums / counts


@torch.no_grad()
def pooled_features(layers: Sequence[NetworkLayer], inputs: Tensor) -> Tensor:
    """The mean output of each channel of these layers; the inputs themselves if there is no layer."""
    values = run_layers(layers, inputs)
    return values.flatten(2).mean(dim=2) if layers and values.dim() > 2 else values


def _captured_layers(graph: ChannelGraph, end: int) -> list[int]:
    """The layers beyond the trunk whose outputs are read by one that mixes channels, or are flattened before it."""
    beyond: set[int] = set()
    flat: set[int] = set()
    captured: dict[int, None] = {}
    for index, step in enumerate(graph.steps):
        if step.mixes or step.kind == "flatten":
            captured.update(dict.fromkeys(source for source in step.sources if source in beyond - flat))
        if (step.mixes and index >= end) or not beyond.isdisjoint(step.sources):
            beyond.add(index)
        if step.kind == "flatten" or (not step.mixes and not flat.isdisjoint(step.sources)):
            flat.add(index)
    return list(captured)


def _channel_effects(
    layers: Sequence[NetworkLayer], captured: Sequence[int], inputs: Tensor, targets: Tensor, measure: Measure
) -> dict[int, Tensor]:
    """The effect of each channel of the captured layers' outputs on each sample, as (samples, channels)."""
    maps, logits = _captured_maps(layers, captured, inputs)
    if measure == "activation":
        return {index: _map_totals(channels.detach()) for index, channels in maps.items()}
    own_logits = logits.gather(1, targets[:, None]).sum()
    gradients = torch.autograd.grad(own_logits, list(maps.values())) if maps else ()
    return {
        index: _map_totals((channels * gradient).detach()).abs()
        for (index, channels), gradient in zip(maps.items(), gradients, strict=True)
    }


def _map_totals(maps: Tensor) -> Tensor:
    return maps.reshape(*maps.shape[:2], -1).sum(dim=2)


def _captured_maps(
    layers: Sequence[NetworkLayer], captured: Sequence[int], inputs: Tensor
) -> tuple[dict[int, Tensor], Tensor]:
    """The outputs of the captured layers, and the logits."""
    values = [inputs]
    maps: dict[int, Tensor] = {}
    for index, layer in enumerate(layers):
        read = [values[source + 1] for source in layer.sources]
        dropout = isinstance(layer.layer, nn.Dropout | nn.Dropout2d)
        values.append(read[0] if dropout else run_in_eval_mode(layer.layer, *read))
        if index in captured:
            maps[index] = values[-1] if values[-1].requires_grad else values[-1].requires_grad_()
    return maps, values[-1]
