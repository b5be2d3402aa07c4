"""Where to cut a network into class groups: what each device can afford, and the best cut within that.

A device's budget is what it computes at nominal speed in the slot of a mini-batch (`rounds.slot`; by default the time
that the fastest device takes for a whole step), two operations per MAC, and its memory for the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from potluck.errors import ModelError, SettingError
from potluck.fleet import Device
from potluck.model.flop_counter import FLOPS_PER_MAC
from potluck.model.submodel_context import SubmodelContext
from potluck.model.training_costs import forward_flops
from potluck.planning.groups import (
    ChannelGraph,
    DeviceBudget,
    GroupChoice,
    assign_round_robin,
    choose_groups,
    full_model_cost,
    group_choices,
)
from potluck.units import Seconds

__all__ = ["AffordableCut", "CutRequest", "affordable_cuts", "choose_cut", "mini_batch_slot_s"]


class CutRequest(NamedTuple):
    """What a job says about its cut; empty tuples leave the choice open."""

    frozen: bool  # whether the trunk is trained
    held: Mapping[str, tuple[int, ...]]  # groups by device, as far as the job names them
    group_counts: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    each: int | None = None  # groups of a device that `held` does not name
    cached: bool = False  # whether the trunk's outputs are kept


class AffordableCut(NamedTuple):
    """Devices of one speed, the fraction of a whole step that fits their slot, and the best cut within it."""

    devices: tuple[str, ...]
    step_fraction: float
    choice: GroupChoice | None  # None: not even the smallest cut fits


def mini_batch_slot_s(context: SubmodelContext, graph: ChannelGraph) -> float:
    """Seconds that each device has for a mini-batch."""
    if context.slot_s is not None:
        return context.slot_s
    fastest = max(device.flops for device in context.devices)
    return forward_flops(full_model_cost(graph).training_macs(frozen=False)) * context.batch_size / fastest


def affordable_cuts(
    context: SubmodelContext, request: CutRequest, graph: ChannelGraph, classes: int
) -> list[AffordableCut]:
    """What fits each kind of device of the fleet, fastest first, at any depth and with any number of groups."""
    kinds: dict[float, list[Device]] = {}
    for device in context.devices:
        kinds.setdefault(device.flops, []).append(device)
    whole_macs = full_model_cost(graph).training_macs(frozen=False)
    cuts = []
    for flops in sorted(kinds, reverse=True):
        names = tuple(device.name for device in kinds[flops])
        budget = _device_budget(context, request, graph, kinds[flops][0])
        try:
            best = choose_groups(graph, classes, budget, held=_held_group_count(context, request, names[0]))
        except ModelError:
            best = None
        cuts.append(AffordableCut(names, budget.macs / whole_macs, best))
    return cuts


def choose_cut(
    context: SubmodelContext, request: CutRequest, graph: ChannelGraph, classes: int, path: str
) -> GroupChoice:
    """The best cut that the slowest device can afford; a SettingError at `path` says if there is none."""
    slowest = min(context.devices, key=lambda device: device.flops)
    budget = _device_budget(context, request, graph, slowest)
    options = (request.group_counts, request.depths, _held_group_count(context, request, slowest.name))
    smallest = min(
        group_choices(graph, classes, *options),
        key=lambda choice: budget.step_macs(choice.cost),
        default=None,
    )
    if smallest is not None and not budget.fits_budget(smallest.cost):
        raise SettingError(path, _too_slow_message(context, graph, slowest, smallest, budget))
    return choose_groups(graph, classes, budget, *options)


def _device_budget(context: SubmodelContext, request: CutRequest, graph: ChannelGraph, device: Device) -> DeviceBudget:
    macs = device.flops * mini_batch_slot_s(context, graph) / (FLOPS_PER_MAC * context.batch_size)
    return DeviceBudget(macs=macs, weight_bytes=device.memory, frozen=request.frozen, cached=request.cached)


def _held_group_count(context: SubmodelContext, request: CutRequest, device: str) -> Callable[[int], int]:
    """How many groups a device trains, by their total: as the job says, else the most that round-robin gives one."""
    if device in request.held:
        return lambda count: len(set(request.held[device]))
    if request.each is not None:
        each = request.each
        return lambda count: min(each, count)
    others = sum(other.name not in request.held for other in context.devices)
    return lambda count: max(map(len, assign_round_robin(others, count)))


def _too_slow_message(
    context: SubmodelContext, graph: ChannelGraph, device: Device, smallest: GroupChoice, budget: DeviceBudget
) -> str:
    needed = forward_flops(budget.step_macs(smallest.cost)) * context.batch_size / device.flops
    return (
        f"not even the smallest cut (depth {smallest.depth}, {smallest.groups} groups) fits {device.name}: a mini-batch"
        f" takes it {_rounded_seconds(needed)}, its slot is"
        f" {_rounded_seconds(mini_batch_slot_s(context, graph))}; set `rounds.slot`, or say which cut"
    )


def _rounded_seconds(seconds: float) -> Seconds:
    return Seconds(float(f"{seconds:.3g}"))
