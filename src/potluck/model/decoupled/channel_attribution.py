"""Assigns each channel beyond the trunk to a group: in order, or by its contribution to the classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model.decoupled.sequential_layers import SequentialLayer, layer_costs, mixes_channels
from potluck.planning.groups import Groups, assign_evenly, group_widths

__all__ = ["ChannelOwners", "Measure", "assign_by_attribution", "assign_in_order", "channel_scores", "pooled_features"]

Measure = Literal["gradient", "activation"]
ChannelOwners = dict[str, Tensor]  # the group of each output channel, by the layer's name


def assign_in_order(steps: Sequence[SequentialLayer], groups: int) -> ChannelOwners:
    """Assign the first channels to the first group, and so on."""
    return {
        name: torch.arange(groups).repeat_interleave(torch.tensor(sizes)) for name, sizes in _group_sizes(steps, groups)
    }


def assign_by_attribution(
    steps: Sequence[SequentialLayer],
    end: int,
    groups: Groups,
    samples: Iterable[tuple[Tensor, Tensor]],
    measure: Measure,
) -> ChannelOwners:
    """Assign channels beyond the trunk's `end` evenly, each to the group to whose classes it contributes most."""
    scores = channel_scores(steps, end, samples, measure)
    owners = {}
    for name, sizes in _group_sizes(steps[end:], len(groups)):
        relative = scores[name] / scores[name].mean(dim=0).clamp_min(1e-12)  # every class counts the same
        gains = torch.stack([relative[:, list(own)].mean(dim=1) for own in groups], dim=1)
        owners[name] = torch.from_numpy(assign_evenly(gains.double().numpy(), sizes))
    return owners


def channel_scores(
    steps: Sequence[SequentialLayer], end: int, samples: Iterable[tuple[Tensor, Tensor]], measure: Measure = "gradient"
) -> dict[str, Tensor]:
    """For each split layer, a table (channels, classes) of the mean of |Σ A · ∂z/∂A| over a class's samples.

    A is the channel's activation map as the next layer receives it and z the logit of the sample's class; the measure
    "activation" is Σ A.
    """
    classes = steps[-1].outputs
    sums: dict[str, Tensor] = {}
    counts = torch.zeros(classes)
    for inputs, targets in samples:
        counts += torch.bincount(targets, minlength=classes)
        for name, effects in _channel_effects(steps, end, inputs, targets, measure).items():
            sums.setdefault(name, torch.zeros(effects.shape[1], classes)).index_add_(1, targets, effects.T)
    missing = torch.nonzero(counts == 0).reshape(-1).tolist()
    if missing:
        raise ModelError(f"no sample of class {missing[0]} to attribute channels with; provide samples of every class")
    return {name: total / counts for name, total in sums.items()}


@torch.no_grad()
def pooled_features(steps: Sequence[SequentialLayer], inputs: Tensor) -> Tensor:
    """The mean output of each channel of these layers; the inputs themselves if there is no layer."""
    values = inputs
    for step in steps:
        values = _run_in_eval_mode(step.layer, values)
    return values.flatten(2).mean(dim=2) if steps and values.dim() > 2 else values


def _channel_effects(
    steps: Sequence[SequentialLayer], end: int, inputs: Tensor, targets: Tensor, measure: Measure
) -> dict[str, Tensor]:
    """The effect of each channel of each split layer on each sample, as (samples, channels)."""
    maps, logits = _split_layer_maps(steps, end, inputs)
    if measure == "activation":
        return {name: _map_totals(channels.detach()) for name, channels in maps.items()}
    own_logits = logits.gather(1, targets[:, None]).sum()
    gradients = torch.autograd.grad(own_logits, list(maps.values())) if maps else ()
    return {
        name: _map_totals((channels * gradient).detach()).abs()
        for (name, channels), gradient in zip(maps.items(), gradients, strict=True)
    }


def _map_totals(maps: Tensor) -> Tensor:
    return maps.reshape(*maps.shape[:2], -1).sum(dim=2)


def _split_layer_maps(steps: Sequence[SequentialLayer], end: int, inputs: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The maps that each split layer passes to the next one that mixes channels, and the logits."""
    maps: dict[str, Tensor] = {}
    split_layer = ""
    values = inputs
    for index, step in enumerate(steps):
        if split_layer and (mixes_channels(step) or isinstance(step.layer, nn.Flatten)):
            maps[split_layer] = values if values.requires_grad else values.requires_grad_()
            split_layer = ""
        values = _run_in_eval_mode(step.layer, values)
        if index >= end and mixes_channels(step):
            split_layer = step.name
    return maps, values


def _run_in_eval_mode(layer: nn.Module, values: Tensor) -> Tensor:
    """Run the layer in evaluation mode and restore its mode."""
    if isinstance(layer, nn.Dropout | nn.Dropout2d):
        return values
    mode = layer.training
    try:
        out: Tensor = layer.eval()(values)
        return out
    finally:
        layer.train(mode)


def _group_sizes(steps: Sequence[SequentialLayer], groups: int) -> Iterable[tuple[str, Sequence[int]]]:
    layers = {layer.name: layer for layer in layer_costs(steps)}
    split_layers = [step for step in steps[:-1] if mixes_channels(step)]
    return [(step.name, group_widths(layers[step.source], groups)) for step in split_layers]
