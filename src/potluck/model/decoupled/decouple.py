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
from potluck.model.decoupled.attribution import Measure, Owners, attributed, in_order
from potluck.model.decoupled.blueprint import Stage, describe
from potluck.model.decoupled.grouped import Grouped, Plan
from potluck.model.decoupled.line import Step, costs, is_mixing, straighten, trunk_steps
from potluck.planning.groups import Groups, check_groups

__all__ = ["Piece", "Variant", "decouple", "pieces"]

Variant = Literal["structural", "attributed"]


class Piece(NamedTuple):
    """What one group keeps of a layer: some of its inputs and outputs; a head gets one output more, for "other"."""

    step: Step
    inputs: Tensor
    outputs: Tensor
    head: bool

    def stage(self) -> Stage:
        return describe(self.step.name, self.step.layer).resized(len(self.inputs), len(self.outputs) + self.head)


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
) -> Grouped:
    """The network as a trunk of `depth` layers and one group for each set of classes.

    `samples` and `measure` are for attribution; `normalised` makes logits comparable (see `readout`); a `frozen` trunk
    is trained by nobody.
    """
    steps = straighten(module, tuple(shape))
    found = check_groups(groups, steps[-1].outputs)
    end = trunk_steps(steps, depth)
    _check_convolutions(steps[end:])
    if variant == "structural":
        owners = in_order(steps[end:], len(found))
    else:
        owners = attributed(steps, end, found, samples, measure)
    branches = [list(pieces(steps[end:], owners, found, group)) for group in range(len(found))]
    where = next(module.parameters()).device
    with where:
        grouped = Grouped(_plan(steps[:end], branches, found, shape, depth, normalised), costs(steps), frozen)
    if where.type == "meta":  # a network of sizes only
        return grouped
    with torch.no_grad():
        _fill(grouped, steps[:end], branches, fresh=variant == "structural", seed=seed)
    return grouped


def pieces(steps: Sequence[Step], owners: Owners, groups: Groups, group: int) -> Iterator[Piece]:
    """The layers of one group, from the trunk's features to its logits."""
    kept = torch.arange(steps[0].width)
    for step in steps:
        outputs = kept
        if step is steps[-1]:
            outputs = torch.tensor(groups[group])
        elif is_mixing(step):
            outputs = torch.nonzero(owners[step.name] == group).reshape(-1)
        elif isinstance(step.layer, nn.Flatten):
            outputs = (kept[:, None] * step.positions + torch.arange(step.positions)).reshape(-1)
        yield Piece(step, kept, outputs, step is steps[-1])
        kept = outputs


def _check_convolutions(steps: Sequence[Step]) -> None:
    for step in steps:
        grouped = is_mixing(step) and getattr(step.layer, "groups", 1) != 1
        if grouped:
            raise ModelError(
                f"layer {step.source!r} has groups of its own and cannot be divided; choose a larger depth"
            )


def _plan(
    trunk: Sequence[Step],
    branches: Sequence[Sequence[Piece]],
    groups: Groups,
    shape: Sequence[int],
    depth: int,
    normalised: bool,
) -> Plan:
    return Plan(
        shape=tuple(shape),
        groups=groups,
        depth=depth,
        trunk=tuple(describe(step.name, step.layer) for step in trunk),
        branches=tuple(tuple(piece.stage() for piece in branch) for branch in branches),
        normalised=normalised,
    )


def _fill(grouped: Grouped, trunk: Sequence[Step], branches: Sequence[Sequence[Piece]], fresh: bool, seed: int) -> None:
    for step in trunk:
        grouped.trunk.get_submodule(step.name).load_state_dict(step.layer.state_dict())
    for number, branch in enumerate(branches):
        draws = torch.Generator().manual_seed(seeds.child(seed, "group", number))
        for piece in branch:
            layer = grouped.branch(number).stages.get_submodule(piece.step.name)
            if fresh:
                _draw(layer, piece.head, draws)
            else:
                _take(layer, piece)


def _draw(layer: nn.Module, head: bool, draws: torch.Generator) -> None:
    """First weights by what comes in (He), since a narrow layer needs larger ones; a head begins undecided."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear):
        inputs = layer.weight[0].numel()
        layer.weight.normal_(std=(1 / inputs if head else 2 / inputs) ** 0.5, generator=draws)
        if layer.bias is not None:
            layer.bias.zero_()


def _take(layer: nn.Module, piece: Piece) -> None:
    """The kept entries of the original layer; a head's "other" begins at zero."""
    original = dict(piece.step.layer.state_dict())
    for name, mine in layer.state_dict().items():
        theirs = original[name]
        if theirs.dim() == 0:
            mine.copy_(theirs)
            continue
        rows = theirs[piece.outputs]
        if is_mixing(piece.step) and theirs.dim() > 1:
            rows = rows[:, piece.inputs]
        mine.zero_()
        mine[: len(rows)].copy_(rows)
