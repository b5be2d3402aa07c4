"""What the solvers minimise the largest of: seconds per batch, or, to explain a failure, bytes that are lacking.

Both have the same shape, which is all that the solvers rely on: a run of layers costs more the longer it is, it
stops fitting a device at some length, and a cut between two devices costs something of its own.
How many versions a stage holds depends on the stages from it to the end, so solvers work from the end backwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from potluck.planning.partition.pipeline_partition import DeviceSpecs, LayerSpecs

__all__ = ["Found", "StageCosts", "shortage_costs", "time_costs"]

Found = tuple[tuple[int, ...], tuple[int, ...]]  # cuts and order


@dataclass(frozen=True)
class StageCosts:
    """The price of runs and cuts; `load` and `bulk` are prefix sums over layers.

    `entry` and `inflow` are what it adds to the one and the other that a run begins with a layer.
    """

    load_prefix: Sequence[float]
    entry: Sequence[float]
    slope: Callable[[int, int], float]  # of a device with so many stages from it to the end
    credit: Callable[[int], float]
    memory_prefix: Sequence[float]
    inflow: Sequence[float]
    versions_held: Callable[[int], int]  # with so many stages to the end
    memory_limit: Callable[[int], float]
    cut: Callable[[int, int, int], float]  # between a device and its successor, before a layer

    @property
    def layers(self) -> int:
        return len(self.load_prefix) - 1

    def run_cost(self, device: int, to_end: int, begin: int, end: int) -> float:
        load = self.load_prefix[end] - self.load_prefix[begin] + self.entry[begin]
        return self.slope(device, to_end) * load - self.credit(device)

    def fits_memory(self, device: int, to_end: int, begin: int, end: int) -> bool:
        return self.versions_held(to_end) * (
            self.memory_prefix[end] - self.memory_prefix[begin] + self.inflow[begin]
        ) <= self.memory_limit(device)

    def beyond_last(self) -> list[float]:
        """The cost of what follows the last stage, by the layer where it ends: it must end at the end."""
        return [math.inf] * self.layers + [-math.inf]


def time_costs(layers: LayerSpecs, devices: DeviceSpecs) -> StageCosts:
    """Time per batch, within the devices' memory."""
    return StageCosts(
        load_prefix=layers.time_prefix,
        entry=[0.0] * len(layers),
        slope=lambda device, _: devices.capacities[device],
        credit=lambda _: 0.0,
        memory_prefix=layers.memory_prefix,
        inflow=layers.input_bytes,
        versions_held=layers.in_flight,
        memory_limit=devices.memory_limit,
        cut=lambda sender, receiver, at: devices.transfer_s(sender, receiver, layers.outputs[at - 1]),
    )


def shortage_costs(layers: LayerSpecs, devices: DeviceSpecs) -> StageCosts:
    """Bytes that a device lacks, over the same allowed cuts."""
    time = time_costs(layers, devices)
    return StageCosts(
        load_prefix=layers.memory_prefix,
        entry=layers.input_bytes,
        slope=lambda _, to_end: layers.in_flight(to_end),
        credit=devices.memory_limit,
        memory_prefix=[0.0] * (len(layers) + 1),
        inflow=[0.0] * len(layers),
        versions_held=layers.in_flight,
        memory_limit=lambda _: math.inf,
        cut=lambda sender, receiver, at: math.inf if math.isinf(time.cut(sender, receiver, at)) else 0.0,
    )
