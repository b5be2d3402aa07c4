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
from potluck.model.chain import Chain
from potluck.model.decoupled.line import costs, straighten
from potluck.model.decoupled.part import PATH, ClassGroups, Labelled
from potluck.planning.groups import Budget, Choice, Layer, choose, dealt, table, whole
from potluck.units import Seconds

__all__ = ["Affordable", "affordable", "is_open", "settled", "slot"]


class Affordable(NamedTuple):
    """Devices of one speed, the share of the whole network's step that fits their slot, and the best cut within it."""

    devices: tuple[str, ...]
    share: float
    choice: Choice | None  # None: not even the smallest fits


def slot(job: Job, layers: Sequence[Layer]) -> float:
    """Seconds of a mini-batch that each device has."""
    if job.rounds.slot is not None:
        return float(job.rounds.slot)
    fastest = max(device.flops for device in job.fleet.members)
    return 2.0 * whole(layers).training_macs(frozen=False) * _size(job) / fastest


def affordable(job: Job, part: ClassGroups, layers: Sequence[Layer], classes: int) -> list[Affordable]:
    """What fits each kind of device of the fleet, fastest first; any depth and any number of groups may be chosen."""
    kinds: dict[float, list[Device]] = {}
    for device in job.fleet.members:
        kinds.setdefault(device.flops, []).append(device)
    everything = whole(layers).training_macs(frozen=False)
    found = []
    for flops in sorted(kinds, reverse=True):
        names, budget = tuple(device.name for device in kinds[flops]), _budget(job, part, layers, kinds[flops][0])
        try:
            best = choose(layers, classes, budget, held=_held(job, part, names[0]))
        except ModelError:
            best = None
        found.append(Affordable(names, budget.macs / everything, best))
    return found


def is_open(job: Job) -> bool:
    """Does the job leave it to us how the network is cut, or which classes are alike to the one it starts from?"""
    part = job.rounds.submodel
    return isinstance(part, ClassGroups) and (not part.settled or _by_features(job, part))


def _by_features(job: Job, part: ClassGroups) -> bool:
    return part.alike and job.start is not None


def settled(job: Job, chain: Chain, samples: Labelled | None) -> Job:
    """The job with nothing left open, for whoever has the network to begin with and the samples."""
    job = _cut(job, chain)
    part = job.rounds.submodel
    if samples is None or not isinstance(part, ClassGroups) or not _by_features(job, part):
        return job
    return _with(job, part.by_features(chain, samples, job.seed))


def _with(job: Job, part: ClassGroups) -> Job:
    return replace(job, rounds=replace(job.rounds, submodel=part))


def _cut(job: Job, chain: Chain) -> Job:
    """The job with `auto` replaced by what its slowest device affords; all else stays as it is."""
    part = job.rounds.submodel
    if not isinstance(part, ClassGroups) or part.settled:
        return job
    steps = straighten(chain.module, chain.shape)
    layers, classes = costs(steps), steps[-1].outputs
    slowest = min(job.fleet.members, key=lambda device: device.flops)
    budget, held = _budget(job, part, layers, slowest), _held(job, part, slowest.name)
    open_to = (part.counts(), () if part.depth == "auto" else (part.depth,), held)
    smallest = min(
        table(layers, classes, *open_to),
        key=lambda choice: choice.cost.training_macs(frozen=budget.frozen),
        default=None,
    )
    if smallest is not None and not budget.allows(smallest.cost):
        raise SettingError(PATH, _too_slow(job, layers, slowest, smallest, budget.frozen))
    choice = choose(layers, classes, budget, *open_to)
    return _with(job, part.cut(choice.depth, choice.groups))


def _budget(job: Job, part: ClassGroups, layers: Sequence[Layer], device: Device) -> Budget:
    macs = device.flops * slot(job, layers) / (2.0 * _size(job))
    return Budget(macs=macs, weight_bytes=device.memory, frozen=part.trunk == "frozen")


def _size(job: Job) -> int:
    return job.rounds.batching.size_for(2**40)


def _held(job: Job, part: ClassGroups, device: str) -> Callable[[int], int]:
    """How many groups a device has, where there are so many: as was said of it, else the most that one is dealt."""
    if device in part.held:
        return lambda count: len(set(part.held[device]))
    others = sum(other.name not in part.held for other in job.fleet.members)
    return lambda count: max(map(len, dealt(others, count)))


def _too_slow(job: Job, layers: Sequence[Layer], device: Device, smallest: Choice, frozen: bool) -> str:
    needed = 2.0 * smallest.cost.training_macs(frozen=frozen) * _size(job) / device.flops
    return (
        f"not even the smallest cut (depth {smallest.depth}, {smallest.groups} groups) fits {device.name}: a mini-batch"
        f" takes it {_about(needed)}, its slot is {_about(slot(job, layers))}; set `rounds.slot`, or say which cut"
    )


def _about(seconds: float) -> Seconds:
    return Seconds(float(f"{seconds:.3g}"))
