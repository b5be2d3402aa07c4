"""Brute-force partitions that the planners are tested against."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise, permutations

from potluck.planning.partition.pipeline_partition import DeviceSpecs, LayerSpecs

__all__ = ["all_layouts", "layout_period", "layout_shortage", "least_period", "least_shortage"]

Runs = list[tuple[int, int]]
RunsAndOrder = tuple[Runs, tuple[int, ...]]


def all_layouts(layers: int, devices: int, *, search: bool, subset: bool, pinned: int | None) -> Iterator[RunsAndOrder]:
    """Every allowed order with every set of cuts, as runs of layers and the devices that run them."""
    sizes = range(1, devices + 1) if subset else [devices]
    for size in sizes:
        for order in (permutations if search else combinations)(range(devices), size):
            if pinned in (None, order[0]):
                for cuts in combinations(range(1, layers), size - 1):
                    yield list(pairwise((0, *cuts, layers))), order


def least_period(layers: LayerSpecs, devices: DeviceSpecs, *, search: bool, subset: bool, pinned: int | None) -> float:
    """The minimal period; infinite if nothing fits."""
    return _minimum(layout_period, layers, devices, search, subset, pinned)


def least_shortage(
    layers: LayerSpecs, devices: DeviceSpecs, *, search: bool, subset: bool, pinned: int | None
) -> float:
    """The minimal largest shortage in bytes; infinite if no cuts are possible at all."""
    return _minimum(layout_shortage, layers, devices, search, subset, pinned)


def layout_period(layers: LayerSpecs, devices: DeviceSpecs, runs: Runs, order: tuple[int, ...]) -> float:
    if layout_shortage(layers, devices, runs, order) > 0:
        return math.inf
    times = [_run_s(layers, devices, device, run) for device, run in zip(order, runs, strict=True)]
    return max(times + _link_times(layers, devices, runs, order))


def layout_shortage(layers: LayerSpecs, devices: DeviceSpecs, runs: Runs, order: tuple[int, ...]) -> float:
    if math.inf in _link_times(layers, devices, runs, order):
        return math.inf
    lacks = [0.0]
    for stage, (device, run) in enumerate(zip(order, runs, strict=True)):
        versions = layers.in_flight(len(order) - stage)
        arriving = layers.outputs[run[0] - 1] if layers.activations and run[0] else 0.0
        version_bytes = sum(layers.weights[slice(*run)]) + sum(layers.activations[slice(*run)]) + arriving
        lacks.append(versions * version_bytes - (devices.memory[device] if devices.memory else math.inf))
    return max(lacks)


def _run_s(layers: LayerSpecs, devices: DeviceSpecs, device: int, run: tuple[int, int]) -> float:
    if devices.layer_times:
        return sum(devices.layer_times[device][slice(*run)])
    return devices.capacities[device] * sum(layers.times[slice(*run)])


def _link_times(layers: LayerSpecs, devices: DeviceSpecs, runs: Runs, order: tuple[int, ...]) -> list[float]:
    ends = [end for _, end in runs[:-1]]
    return [devices.transfer_s(*link, layers.outputs[end - 1]) for link, end in zip(pairwise(order), ends, strict=True)]


def _minimum(
    objective: Callable[[LayerSpecs, DeviceSpecs, Runs, tuple[int, ...]], float],
    layers: LayerSpecs,
    devices: DeviceSpecs,
    search: bool,
    subset: bool,
    pinned: int | None,
) -> float:
    tried = all_layouts(len(layers), len(devices), search=search, subset=subset, pinned=pinned)
    return min((objective(layers, devices, *layout) for layout in tried), default=math.inf)
