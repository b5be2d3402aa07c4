"""Splits a network: the first layers become a shared trunk, the others independent groups of channels.

*Structural*: channels are assigned in order and the groups start with newly initialised weights. *Attributed*: each
channel goes to the group whose classes it contributes to most, and the weights within a group are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from potluck import seeds
from potluck.model.decoupled.channel_attribution import Measure, attribution_choice
from potluck.model.decoupled.grouped_network import GroupedNetwork, GroupedNetworkSpec
from potluck.model.decoupled.layer_spec import LayerSpec, describe_layer
from potluck.model.decoupled.network_layers import NetworkLayer, channel_graph, trace_network
from potluck.model.shape_only import ShapeOnlyMode
from potluck.planning.groups import Groups, OwnedStep, OwnerChoice, check_groups, choose_in_order
from potluck.planning.groups.channel_graph import EVERYONE

__all__ = ["LayerSlice", "Variant", "class_owners", "decouple", "group_slices"]

Variant = Literal["structural", "attributed"]


class LayerSlice(NamedTuple):
    """What one group keeps of a layer: some inputs and outputs; a head gets an additional output for "other".

    `specs` describe it: the layer itself, and before it what selects channels of its inputs.
    """

    step: NetworkLayer
    inputs: Tensor
    outputs: Tensor
    head: bool
    specs: tuple[LayerSpec, ...]

    @property
    def mixes(self) -> bool:
        """Whether it connects all of its inputs with all of its outputs."""
        return isinstance(self.step.layer, nn.Linear) or getattr(self.step.layer, "groups", 0) == 1


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
    layers = trace_network(module, tuple(shape))
    graph, checked = channel_graph(layers), check_groups(groups, layers[-1].outputs)
    end = graph.trunk_end(depth)
    choose: OwnerChoice = choose_in_order
    if variant == "attributed":
        choose = attribution_choice(layers, end, checked, samples, measure)
    owned = graph.own_channels(end, class_owners(checked), choose)
    branches = [group_slices(layers, owned, checked, group) for group in range(len(checked))]
    spec = GroupedNetworkSpec(
        shape=tuple(shape),
        groups=checked,
        depth=depth,
        trunk=tuple(_trunk_spec(layers, index) for index in range(end)),
        branches=tuple(tuple(spec for kept in branch for spec in kept.specs) for branch in branches),
        normalised=normalised,
    )
    device = next(module.parameters()).device
    if device.type == "meta":
        with ShapeOnlyMode():
            return GroupedNetwork(spec, graph, frozen)
    grouped = GroupedNetwork(spec, graph, frozen).to(device)
    with torch.no_grad():
        for step in layers[:end]:
            grouped.trunk.get_submodule(step.name).load_state_dict(step.layer.state_dict())
        for group, branch in enumerate(branches):
            generator = torch.Generator().manual_seed(seeds.child_seed(seed, "group", group))
            _fill_group(grouped, group, branch, None if variant == "attributed" else generator)
    return grouped


def class_owners(groups: Groups) -> np.ndarray:
    """The group of each class."""
    owners = np.empty(sum(map(len, groups)), np.int64)
    for group, classes in enumerate(groups):
        owners[list(classes)] = group
    return owners


def group_slices(
    layers: Sequence[NetworkLayer], owned: Sequence[OwnedStep], groups: Groups, group: int
) -> list[LayerSlice]:
    """The layers of one group, from the trunk's features to its logits."""
    slices: list[LayerSlice] = []
    outputs_of = {step.index: step.outputs for step in owned}
    for step in owned:
        index, read = step.index, step.inputs
        layer = layers[index]
        head = index == len(layers) - 1
        kept_inputs = _kept(read[0], group)
        kept_outputs = torch.tensor(groups[group]) if head else _kept(step.outputs, group)
        selections, names = [], []
        for number, (source, owners) in enumerate(zip(layer.sources, read, strict=True)):
            given = outputs_of.get(source, np.full(len(owners), EVERYONE))
            names.append(layers[source].name if source in outputs_of else "")
            if not np.array_equal(given, owners):
                channels = torch.searchsorted(_kept(given, group), _kept(owners, group)).tolist()
                selected = f"{layer.name}_input{number}"
                selections.append(LayerSpec(selected, "SelectChannels", {"channels": channels}, (names[-1],)))
                names[-1] = selected
        previous = selections[-1].name if selections else slices[-1].specs[-1].name if slices else ""
        spec = describe_layer(layer.name, layer.layer).with_widths(len(kept_inputs), len(kept_outputs) + head)
        if names != [previous]:
            spec = msgspec.structs.replace(spec, inputs=tuple(names))
        slices.append(LayerSlice(layer, kept_inputs, kept_outputs, head, (*selections, spec)))
    return slices


def _kept(owners: np.ndarray, group: int) -> Tensor:
    """The channels that a group has, in order."""
    return torch.from_numpy(np.flatnonzero((owners == EVERYONE) | (owners == group)))


def _trunk_spec(layers: Sequence[NetworkLayer], index: int) -> LayerSpec:
    layer = layers[index]
    spec = describe_layer(layer.name, layer.layer)
    if layer.sources == (index - 1,):
        return spec
    names = tuple(layers[source].name if source >= 0 else "" for source in layer.sources)
    return msgspec.structs.replace(spec, inputs=names)


def _fill_group(
    grouped: GroupedNetwork, group: int, slices: Sequence[LayerSlice], generator: torch.Generator | None
) -> None:
    """Draw the weights of a group, or copy them from the network if there is no generator."""
    for kept in slices:
        layer = grouped.group_branch(group).stages.get_submodule(kept.step.name)
        if generator is None:
            _copy_weights(layer, kept)
        else:
            _draw_weights(layer, kept.head, generator)


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
        if kept.mixes and source.dim() > 1:
            rows = rows[:, kept.inputs]
        target.zero_()
        target[: len(rows)].copy_(rows)
