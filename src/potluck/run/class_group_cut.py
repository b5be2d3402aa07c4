"""Where to cut a network into class groups: what each device affords, and the cut that is best within that.

A device's budget is what it computes at nominal speed in the slot of a mini-batch (`rounds.slot`; by default what the
fastest device takes for a whole step), two operations to a MAC, and its memory for the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from potluck.errors import ModelError, SettingError
from potluck.fleet import Device
from potluck.job import Job
from potluck.model.decoupled.class_groups import PATH, ClassGroups, LabelledSamples
from potluck.model.decoupled.sequential_layers import layer_costs, trace_sequential
from potluck.model.layer_chain import LayerChain
from potluck.planning.groups import (
    ChannelLayer,
    DeviceBudget,
    GroupChoice,
    assign_round_robin,
    choose_groups,
    full_model_cost,
    group_choices,
)
from potluck.units import Seconds

__all__ = ["AffordableCut", "affordable_cuts", "has_auto_settings", "mini_batch_slot_s", "resolve_class_groups"]


class AffordableCut(NamedTuple):
    """Devices of one speed, the share of the whole network's step that fits their slot, and the best cut within it."""

    devices: tuple[str, ...]
    step_fraction: float
    choice: GroupChoice | None  # None: not even the smallest fits


def mini_batch_slot_s(job: Job, layers: Sequence[ChannelLayer]) -> float:
    """Seconds of a mini-batch that each device has."""
    if job.rounds.slot is not None:
        return float(job.rounds.slot)
    fastest = max(device.flops for device in job.fleet.members)
    return 2.0 * full_model_cost(layers).training_macs(frozen=False) * _batch_size(job) / fastest


def affordable_cuts(job: Job, part: ClassGroups, layers: Sequence[ChannelLayer], classes: int) -> list[AffordableCut]:
    """What fits each kind of device of the fleet, fastest first; any depth and any number of groups may be chosen."""
    kinds: dict[float, list[Device]] = {}
    for device in job.fleet.members:
        kinds.setdefault(device.flops, []).append(device)
    everything = full_model_cost(layers).training_macs(frozen=False)
    found = []
    for flops in sorted(kinds, reverse=True):
        names, budget = (
            tuple(device.name for device in kinds[flops]),
            _device_budget(job, part, layers, kinds[flops][0]),
        )
        try:
            best = choose_groups(layers, classes, budget, held=_held_group_count(job, part, names[0]))
        except ModelError:
            best = None
        found.append(AffordableCut(names, budget.macs / everything, best))
    return found


def has_auto_settings(job: Job) -> bool:
    """Does the job leave it to us how the network is cut, or which classes are alike to the one it starts from?"""
    part = job.rounds.submodel
    return isinstance(part, ClassGroups) and (not part.is_resolved or _groups_by_features(job, part))


def _groups_by_features(job: Job, part: ClassGroups) -> bool:
    return part.alike and job.start is not None


def resolve_class_groups(job: Job, chain: LayerChain, samples: LabelledSamples | None) -> Job:
    """The job with nothing left open, for whoever has the network to begin with and the samples."""
    job = _resolve_auto_cut(job, chain)
    part = job.rounds.submodel
    if samples is None or not isinstance(part, ClassGroups) or not _groups_by_features(job, part):
        return job
    return _with_class_groups(job, part.group_by_features(chain, samples, job.seed))


def _with_class_groups(job: Job, part: ClassGroups) -> Job:
    return replace(job, rounds=replace(job.rounds, submodel=part))


def _resolve_auto_cut(job: Job, chain: LayerChain) -> Job:
    """The job with `auto` replaced by what its slowest device affords; all else stays as it is."""
    part = job.rounds.submodel
    if not isinstance(part, ClassGroups) or part.is_resolved:
        return job
    steps = trace_sequential(chain.module, chain.shape)
    layers, classes = layer_costs(steps), steps[-1].outputs
    slowest = min(job.fleet.members, key=lambda device: device.flops)
    budget, held = _device_budget(job, part, layers, slowest), _held_group_count(job, part, slowest.name)
    open_to = (part.group_counts(), () if part.depth == "auto" else (part.depth,), held)
    smallest = min(
        group_choices(layers, classes, *open_to),
        key=lambda choice: choice.cost.training_macs(frozen=budget.frozen),
        default=None,
    )
    if smallest is not None and not budget.fits_budget(smallest.cost):
        raise SettingError(PATH, _too_slow_message(job, layers, slowest, smallest, budget.frozen))
    choice = choose_groups(layers, classes, budget, *open_to)
    return _with_class_groups(job, part.resolve_cut(choice.depth, choice.groups))


def _device_budget(job: Job, part: ClassGroups, layers: Sequence[ChannelLayer], device: Device) -> DeviceBudget:
    macs = device.flops * mini_batch_slot_s(job, layers) / (2.0 * _batch_size(job))
    return DeviceBudget(macs=macs, weight_bytes=device.memory, frozen=part.trunk == "frozen")


def _batch_size(job: Job) -> int:
    return job.rounds.batching.batch_size_for(2**40)


def _held_group_count(job: Job, part: ClassGroups, device: str) -> Callable[[int], int]:
    """How many groups a device has, where there are so many: as was said of it, else the most that one is dealt."""
    if device in part.held:
        return lambda count: len(set(part.held[device]))
    others = sum(other.name not in part.held for other in job.fleet.members)
    return lambda count: max(map(len, assign_round_robin(others, count)))


def _too_slow_message(
    job: Job, layers: Sequence[ChannelLayer], device: Device, smallest: GroupChoice, frozen: bool
) -> str:
    needed = 2.0 * smallest.cost.training_macs(frozen=frozen) * _batch_size(job) / device.flops
    return (
        f"not even the smallest cut (depth {smallest.depth}, {smallest.groups} groups) fits {device.name}: a mini-batch"
        f" takes it {_rounded_seconds(needed)}, its slot is"
        f" {_rounded_seconds(mini_batch_slot_s(job, layers))}; set `rounds.slot`, or say which cut"
    )


def _rounded_seconds(seconds: float) -> Seconds:
    return Seconds(float(f"{seconds:.3g}"))
