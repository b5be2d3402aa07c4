"""Layer and device specifications, and the cost of a given pipeline partition.

layers   0 1 2 | 3 4 5 6 | 7 8        cuts (3, 7): a cut c lies between layers c−1 and c
stage      0        1       2         order: the device of each stage
period = max(capacity × reference time of each stage, time of each link per batch)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from potluck.errors import UserError

__all__ = ["Bandwidth", "DeviceSpecs", "LayerSpecs", "PipelinePartition", "ShortMemoryError", "evaluate_partition"]

Bandwidth = float | Sequence[Sequence[float]] | Callable[[int, int], float]


class ShortMemoryError(UserError):
    """No partition fits the devices' memory; `device` lacks `short_bytes` in the one with the smallest shortage."""

    def __init__(self, device: int, stage: int, need_bytes: float, available_bytes: float, name: str = "") -> None:
        self.device = device
        self.short_bytes = need_bytes - available_bytes
        self._details = device, stage, need_bytes, available_bytes
        label = name or f"device {device}"
        super().__init__(
            f"{label} is {_format_megabytes(self.short_bytes)} short of memory: as stage {stage} it needs "
            f"{_format_megabytes(need_bytes)} and has {_format_megabytes(available_bytes)}; "
            "use a smaller batch, add a device, or leave out devices with little memory"
        )

    def with_device_name(self, names: Sequence[str]) -> ShortMemoryError:
        """The same error with the device's name in its message."""
        return ShortMemoryError(*self._details, names[self.device])


def _versions_by_default(to_end: int) -> int:
    return to_end


@dataclass(frozen=True, kw_only=True)
class LayerSpecs:
    """What the planner knows about each layer; times are forward + backward on the reference device."""

    times: Sequence[float]
    outputs: Sequence[float]  # bytes that cross a cut after the layer; infinite where no cut is allowed
    weights: Sequence[float] = ()  # bytes held once for each weight version
    activations: Sequence[float] = ()  # bytes produced in the layer, held once for each batch in flight
    in_flight: Callable[[int], int] = (
        _versions_by_default  # versions held by a stage, by the number of stages from it to the end
    )

    def __post_init__(self) -> None:
        if not self.times:
            raise UserError("layers.times: a partition needs at least one layer")
        if any(not 0 <= time < math.inf for time in self.times):
            raise UserError("layers.times: each must be a finite number of seconds, 0 or more")
        for name, column in (("outputs", self.outputs), ("weights", self.weights), ("activations", self.activations)):
            self._check_column(name, column, optional=name != "outputs")

    def _check_column(self, name: str, column: Sequence[float], optional: bool) -> None:
        if len(column) != len(self) and (column or not optional):
            raise UserError(f"layers.{name}: {len(column)} values for {len(self)} layers; give one for each")
        if any(not value >= 0 or (optional and math.isinf(value)) for value in column):
            raise UserError(f"layers.{name}: each must be a number of bytes, 0 or more")

    def __len__(self) -> int:
        return len(self.times)

    @cached_property
    def time_prefix(self) -> list[float]:
        """Reference time of the first j layers."""
        return list(accumulate(self.times, initial=0.0))

    @cached_property
    def memory_prefix(self) -> list[float]:
        """Bytes of one version of the first j layers."""
        blank = [0.0] * len(self)
        each = zip(self.weights or blank, self.activations or blank, strict=True)
        return list(accumulate((weights + activations for weights, activations in each), initial=0.0))

    @cached_property
    def input_bytes(self) -> list[float]:
        """Bytes that a stage receives and holds if it begins with this layer."""
        if not self.activations:
            return [0.0] * len(self)
        return [0.0, *(0.0 if math.isinf(size) else size for size in self.outputs[:-1])]

    def run_bytes(self, begin: int, end: int, to_end: int) -> float:
        """Bytes that layers [begin, end) take on a stage with `to_end` stages from it to the end."""
        return self.in_flight(to_end) * (self.memory_prefix[end] - self.memory_prefix[begin] + self.input_bytes[begin])


@dataclass(frozen=True, kw_only=True)
class DeviceSpecs:
    """What the planner knows about the devices and the links between them."""

    capacities: Sequence[float]  # measured time / reference time: above 1 is slower
    bandwidth: Bandwidth = math.inf  # bytes per second from device i to device j; 0 where there is no link
    memory: Sequence[float] = ()  # bytes; unlimited if empty
    layer_times: Sequence[Sequence[float]] = ()  # seconds of each layer on each device; if empty, capacity × reference
    duplex: bool = False  # whether links carry both directions at once

    def __post_init__(self) -> None:
        if not self.capacities or any(not 0 < capacity < math.inf for capacity in self.capacities):
            raise UserError("devices.capacities: give a finite number above 0 for each device")
        if self.layer_times and len(self.layer_times) != len(self):
            raise UserError(
                f"devices.layer_times: {len(self.layer_times)} rows for {len(self)} devices; give one for each"
            )
        if self.memory and len(self.memory) != len(self):
            raise UserError(f"devices.memory: {len(self.memory)} values for {len(self)} devices; give one for each")
        if any(not limit >= 0 for limit in self.memory):
            raise UserError("devices.memory: each must be a number of bytes, 0 or more")

    def __len__(self) -> int:
        return len(self.capacities)

    @cached_property
    def time_prefixes(self) -> list[list[float]]:
        """Per device, the seconds of the first j layers; empty without `layer_times`."""
        return [list(accumulate(times, initial=0.0)) for times in self.layer_times]

    def memory_limit(self, device: int) -> float:
        return self.memory[device] if self.memory else math.inf

    def transfer_s(self, sender: int, receiver: int, size_bytes: float) -> float:
        """Seconds that one batch occupies the link: the output downstream, and the gradient of equal size upstream."""
        down = _transfer_seconds(size_bytes, self._link_bandwidth(sender, receiver))
        up = _transfer_seconds(size_bytes, self._link_bandwidth(receiver, sender))
        return max(down, up) if self.duplex else down + up

    def _link_bandwidth(self, sender: int, receiver: int) -> float:
        if callable(self.bandwidth):
            return self.bandwidth(sender, receiver)
        if isinstance(self.bandwidth, int | float):
            return self.bandwidth
        return self.bandwidth[sender][receiver]


@dataclass(frozen=True)
class PipelinePartition:
    """A partition and its cost per batch."""

    cuts: tuple[int, ...]
    order: tuple[int, ...]
    layers: int
    stage_times: tuple[float, ...]
    transfer_times: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    ideal_period: float  # period of these devices if layers could be cut anywhere and links were free

    @property
    def period(self) -> float:
        """Seconds between two batches once the pipeline is full."""
        return max(self.stage_times + self.transfer_times)

    @property
    def throughput(self) -> float:
        """Batches per second once the pipeline is full: an upper bound for any schedule."""
        return 1 / self.period if self.period else math.inf

    @property
    def stages(self) -> tuple[range, ...]:
        """The layers of each stage."""
        return tuple(range(*ends) for ends in pairwise((0, *self.cuts, self.layers)))

    @property
    def bottleneck(self) -> str:
        """The stage or link that determines the period; a stage if both do."""
        if self.period in self.stage_times:
            stage = self.stage_times.index(self.period)
            return f"stage {stage} on device {self.order[stage]}"
        link = self.transfer_times.index(self.period)
        return f"link from device {self.order[link]} to device {self.order[link + 1]}"


def evaluate_partition(
    cuts: Sequence[int], order: Sequence[int], layers: LayerSpecs, devices: DeviceSpecs
) -> PipelinePartition:
    """The partition with these cuts and devices; UserError if it cannot run."""
    _check_layout(cuts, order, layers, devices)
    runs = list(pairwise((0, *cuts, len(layers))))
    partition = PipelinePartition(
        cuts=tuple(cuts),
        order=tuple(order),
        layers=len(layers),
        stage_times=tuple(
            _stage_seconds(layers, devices, device, begin, end)
            for device, (begin, end) in zip(order, runs, strict=True)
        ),
        transfer_times=tuple(
            devices.transfer_s(*link, layers.outputs[cut - 1]) for link, cut in zip(pairwise(order), cuts, strict=True)
        ),
        memory_bytes=tuple(layers.run_bytes(begin, end, len(order) - stage) for stage, (begin, end) in enumerate(runs)),
        ideal_period=_ideal_period(layers, devices, order),
    )
    _check_feasible(partition, devices)
    return partition


def _stage_seconds(layers: LayerSpecs, devices: DeviceSpecs, device: int, begin: int, end: int) -> float:
    if devices.layer_times:
        return devices.time_prefixes[device][end] - devices.time_prefixes[device][begin]
    return devices.capacities[device] * (layers.time_prefix[end] - layers.time_prefix[begin])


def _ideal_period(layers: LayerSpecs, devices: DeviceSpecs, order: Sequence[int]) -> float:
    if devices.layer_times:
        return 1 / sum(1 / devices.time_prefixes[device][-1] for device in order)
    return layers.time_prefix[-1] / sum(1 / devices.capacities[device] for device in order)


def _check_layout(cuts: Sequence[int], order: Sequence[int], layers: LayerSpecs, devices: DeviceSpecs) -> None:
    if len(order) != len(cuts) + 1:
        raise UserError(f"cuts: {len(cuts)} cuts make {len(cuts) + 1} stages, but the order names {len(order)} devices")
    if len(set(order)) != len(order) or not set(order) <= set(range(len(devices))):
        raise UserError(f"order: {tuple(order)} must name different devices from 0 to {len(devices) - 1}")
    if any(begin >= end for begin, end in pairwise((0, *cuts, len(layers)))):
        raise UserError(f"cuts: {tuple(cuts)} must rise and lie between 1 and {len(layers) - 1}: no stage may be empty")


def _check_feasible(partition: PipelinePartition, devices: DeviceSpecs) -> None:
    for cut, link, seconds in zip(partition.cuts, pairwise(partition.order), partition.transfer_times, strict=True):
        if math.isinf(seconds):
            raise UserError(
                f"cuts: no cut is possible before layer {cut} between devices {link[0]} and {link[1]}; "
                "cut elsewhere or connect them"
            )
    needs = zip(partition.order, partition.memory_bytes, strict=True)
    lacks = [(need - devices.memory_limit(device), stage) for stage, (device, need) in enumerate(needs)]
    short, stage = max(lacks, key=lambda lack: lack[0])
    if short > 0:
        device = partition.order[stage]
        raise ShortMemoryError(device, stage, partition.memory_bytes[stage], devices.memory_limit(device))


def _transfer_seconds(size_bytes: float, rate: float) -> float:
    if rate <= 0 or math.isinf(size_bytes):
        return math.inf
    return size_bytes / rate


def _format_megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.6g} MB"
