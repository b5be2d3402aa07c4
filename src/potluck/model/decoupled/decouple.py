"""Splits a network: the first layers become a shared trunk, the others independent groups of channels.

*Structural*: channels are assigned in order and the groups start with newly initialised weights. *Attributed*: each
channel goes to the group whose classes it contributes to most, and the weights within a group are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from potluck import seeds
from potluck.errors import ModelError
from potluck.model.decoupled.channel_attribution import ChannelOwners, Measure, assign_by_attribution, assign_in_order
from potluck.model.decoupled.grouped_network import GroupedNetwork, GroupedNetworkSpec
from potluck.model.decoupled.layer_spec import LayerSpec, describe_layer
from potluck.model.decoupled.sequential_layers import (
    SequentialLayer,
    layer_costs,
    mixes_channels,
    trace_sequential,
    trunk_length,
)
from potluck.model.shape_only import ShapeOnlyMode
from potluck.planning.groups import Groups, check_groups

__all__ = ["LayerSlice", "Variant", "decouple", "group_slices"]

Variant = Literal["structural", "attributed"]


class LayerSlice(NamedTuple):
    """What one group keeps of a layer: some inputs and outputs; a head gets an additional output for "other"."""

    step: SequentialLayer
    inputs: Tensor
    outputs: Tensor
    head: bool

    def layer_spec(self) -> LayerSpec:
        return describe_layer(self.step.name, self.step.layer).with_widths(
            len(self.inputs), len(self.outputs) + self.head
        )


def decouple(
    module: nn.Module,
    shape: Sequence[int],
    groups: Sequence[Sequence[int]],
    depth: int,
    variant: Variant = "structural",
    *,
    samples: Iterable[tuple[Tensor, Tensor]] = (),
    measure: Measure = "gradient",
    normalised: bool = True,
    frozen: bool = False,
    seed: int = 0,
) -> GroupedNetwork:
    """The network as a trunk of `depth` layers and one group for each set of classes.

    `samples` and `measure` are for attribution; `normalised` makes logits comparable (see `group_readout`); a `frozen`
    trunk is not trained.
    """
    steps = trace_sequential(module, tuple(shape))
    checked = check_groups(groups, steps[-1].outputs)
    end = trunk_length(steps, depth)
    _check_convolutions(steps[end:])
    if variant == "structural":
        owners = assign_in_order(steps[end:], len(checked))
    else:
        owners = assign_by_attribution(steps, end, checked, samples, measure)
    branches = [list(group_slices(steps[end:], owners, checked, group)) for group in range(len(checked))]
    spec = _network_spec(steps[:end], branches, checked, shape, depth, normalised)
    device = next(module.parameters()).device
    if device.type == "meta":
        with ShapeOnlyMode():
            return GroupedNetwork(spec, layer_costs(steps), frozen)
    grouped = GroupedNetwork(spec, layer_costs(steps), frozen).to(device)
    with torch.no_grad():
        _fill_weights(grouped, steps[:end], branches, fresh=variant == "structural", seed=seed)
    return grouped


def group_slices(
    steps: Sequence[SequentialLayer], owners: ChannelOwners, groups: Groups, group: int
) -> Iterator[LayerSlice]:
    """The layers of one group, from the trunk's features to its logits."""
    kept = torch.arange(steps[0].width)
    for step in steps:
        outputs = kept
        if step is steps[-1]:
            outputs = torch.tensor(groups[group])
        elif mixes_channels(step):
            outputs = torch.nonzero(owners[step.name] == group).reshape(-1)
        elif isinstance(step.layer, nn.Flatten):
            outputs = (kept[:, None] * step.positions + torch.arange(step.positions)).reshape(-1)
        yield LayerSlice(step, kept, outputs, step is steps[-1])
        kept = outputs


def _check_convolutions(steps: Sequence[SequentialLayer]) -> None:
    for step in steps:
        grouped = mixes_channels(step) and getattr(step.layer, "groups", 1) != 1
        if grouped:
            raise ModelError(f"layer {step.source!r} is a grouped convolution and cannot be split; use a larger depth")


def _network_spec(
    trunk: Sequence[SequentialLayer],
    branches: Sequence[Sequence[LayerSlice]],
    groups: Groups,
    shape: Sequence[int],
    depth: int,
    normalised: bool,
) -> GroupedNetworkSpec:
    return GroupedNetworkSpec(
        shape=tuple(shape),
        groups=groups,
        depth=depth,
        trunk=tuple(describe_layer(step.name, step.layer) for step in trunk),
        branches=tuple(tuple(layer.layer_spec() for layer in branch) for branch in branches),
        normalised=normalised,
    )


def _fill_weights(
    grouped: GroupedNetwork,
    trunk: Sequence[SequentialLayer],
    branches: Sequence[Sequence[LayerSlice]],
    fresh: bool,
    seed: int,
) -> None:
    for step in trunk:
        grouped.trunk.get_submodule(step.name).load_state_dict(step.layer.state_dict())
    for number, branch in enumerate(branches):
        generator = torch.Generator().manual_seed(seeds.child_seed(seed, "group", number))
        for kept in branch:
            layer = grouped.group_branch(number).stages.get_submodule(kept.step.name)
            if fresh:
                _draw_weights(layer, kept.head, generator)
            else:
                _copy_weights(layer, kept)


def _draw_weights(layer: nn.Module, head: bool, generator: torch.Generator) -> None:
    """He initialisation, since a narrow layer needs larger weights; a head's outputs start out small."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear):
        inputs = layer.weight[0].numel()
        layer.weight.normal_(std=(1 / inputs if head else 2 / inputs) ** 0.5, generator=generator)
        if layer.bias is not None:
            layer.bias.zero_()


def _copy_weights(layer: nn.Module, kept: LayerSlice) -> None:
    """Copy the kept entries of the original layer; a head's "other" starts at zero."""
    original = dict(kept.step.layer.state_dict())
    for name, target in layer.state_dict().items():
        source = original[name]
        if source.dim() == 0:
            target.copy_(source)
            continue
        rows = source[kept.outputs]
        if mixes_channels(kept.step) and source.dim() > 1:
            rows = rows[:, kept.inputs]
        target.zero_()
        target[: len(rows)].copy_(rows)
