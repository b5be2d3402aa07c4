"""Take a network apart: the first layers stay whole as a trunk, the others become independent groups of channels.

*Structural*: channels are dealt out in order and the groups begin with fresh weights. *Attributed*: each channel goes
to the group whose classes it serves most, and the weights between channels of one group are kept as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from potluck import seeds
from potluck.errors import ModelError
from potluck.model.decoupled.channel_attribution import Measure, Owners, assign_by_attribution, assign_in_order
from potluck.model.decoupled.grouped_network import GroupedNetwork, GroupedNetworkSpec
from potluck.model.decoupled.layer_spec import LayerSpec, describe_layer
from potluck.model.decoupled.sequential_layers import (
    SequentialLayer,
    layer_costs,
    mixes_channels,
    trace_sequential,
    trunk_length,
)
from potluck.planning.groups import Groups, check_groups

__all__ = ["LayerSlice", "Variant", "decouple", "group_slices"]

Variant = Literal["structural", "attributed"]


class LayerSlice(NamedTuple):
    """What one group keeps of a layer: some of its inputs and outputs; a head gets one output more, for "other"."""

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

    `samples` and `measure` are for attribution; `normalised` makes logits comparable (see `readout`); a `frozen` trunk
    is trained by nobody.
    """
    steps = trace_sequential(module, tuple(shape))
    found = check_groups(groups, steps[-1].outputs)
    end = trunk_length(steps, depth)
    _check_convolutions(steps[end:])
    if variant == "structural":
        owners = assign_in_order(steps[end:], len(found))
    else:
        owners = assign_by_attribution(steps, end, found, samples, measure)
    branches = [list(group_slices(steps[end:], owners, found, group)) for group in range(len(found))]
    where = next(module.parameters()).device
    with where:
        grouped = GroupedNetwork(
            _network_spec(steps[:end], branches, found, shape, depth, normalised), layer_costs(steps), frozen
        )
    if where.type == "meta":  # a network of sizes only
        return grouped
    with torch.no_grad():
        _fill_weights(grouped, steps[:end], branches, fresh=variant == "structural", seed=seed)
    return grouped


def group_slices(steps: Sequence[SequentialLayer], owners: Owners, groups: Groups, group: int) -> Iterator[LayerSlice]:
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
            raise ModelError(
                f"layer {step.source!r} has groups of its own and cannot be divided; choose a larger depth"
            )


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
        branches=tuple(tuple(piece.layer_spec() for piece in branch) for branch in branches),
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
        draws = torch.Generator().manual_seed(seeds.child_seed(seed, "group", number))
        for piece in branch:
            layer = grouped.group_branch(number).stages.get_submodule(piece.step.name)
            if fresh:
                _draw_weights(layer, piece.head, draws)
            else:
                _copy_weights(layer, piece)


def _draw_weights(layer: nn.Module, head: bool, draws: torch.Generator) -> None:
    """First weights by what comes in (He), since a narrow layer needs larger ones; a head begins undecided."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear):
        inputs = layer.weight[0].numel()
        layer.weight.normal_(std=(1 / inputs if head else 2 / inputs) ** 0.5, generator=draws)
        if layer.bias is not None:
            layer.bias.zero_()


def _copy_weights(layer: nn.Module, piece: LayerSlice) -> None:
    """The kept entries of the original layer; a head's "other" begins at zero."""
    original = dict(piece.step.layer.state_dict())
    for name, mine in layer.state_dict().items():
        theirs = original[name]
        if theirs.dim() == 0:
            mine.copy_(theirs)
            continue
        rows = theirs[piece.outputs]
        if mixes_channels(piece.step) and theirs.dim() > 1:
            rows = rows[:, piece.inputs]
        mine.zero_()
        mine[: len(rows)].copy_(rows)
