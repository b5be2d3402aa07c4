"""The objectives whose maximum the solvers minimise: seconds per batch or, to explain a failure, missing bytes.

Both have the structure that the solvers rely on: a run of layers costs more the longer it is, exceeds a device's
memory at some length, and a cut between two devices has a cost of its own.
How many versions a stage holds depends on the stages from it to the end, so solvers work backwards from the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from potluck.planning.partition.pipeline_partition import DeviceSpecs, LayerSpecs

__all__ = ["CutsAndOrder", "StageCosts", "shortage_costs", "time_costs"]

CutsAndOrder = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class StageCosts:
    """The cost of runs of layers and of cuts.

    `entry` and `inflow` are added to a run's load and memory, by the layer that it begins with.
    """

    load_prefix: Sequence[Sequence[float]]  # per device; one row if it is the same for all
    entry: Sequence[float]
    slope: Callable[[int, int], float]  # cost per load, by device and number of stages from it to the end
    credit: Callable[[int], float]
    memory_prefix: Sequence[float]
    inflow: Sequence[float]
    versions_held: Callable[[int], int]  # by the number of stages to the end
    memory_limit: Callable[[int], float]
    cut: Callable[[int, int, int], float]  # by device, its successor and the layer after the cut

    @property
    def layers(self) -> int:
        return len(self.load_prefix[0]) - 1

    def load_of(self, device: int) -> Sequence[float]:
        return self.load_prefix[device if len(self.load_prefix) > 1 else 0]

    def run_cost(self, device: int, to_end: int, begin: int, end: int) -> float:
        load = self.load_of(device)
        return self.slope(device, to_end) * (load[end] - load[begin] + self.entry[begin]) - self.credit(device)

    def fits_memory(self, device: int, to_end: int, begin: int, end: int) -> bool:
        return self.versions_held(to_end) * (
            self.memory_prefix[end] - self.memory_prefix[begin] + self.inflow[begin]
        ) <= self.memory_limit(device)

    def beyond_last(self) -> list[float]:
        """The cost beyond the last stage, by the layer where it ends: only the end of the chain is allowed."""
        return [math.inf] * self.layers + [-math.inf]


def time_costs(layers: LayerSpecs, devices: DeviceSpecs) -> StageCosts:
    """Seconds per batch, within the devices' memory."""
    return StageCosts(
        load_prefix=devices.time_prefixes or [layers.time_prefix],
        entry=[0.0] * len(layers),
        slope=lambda device, _: 1.0 if devices.layer_times else devices.capacities[device],
        credit=lambda _: 0.0,
        memory_prefix=layers.memory_prefix,
        inflow=layers.input_bytes,
        versions_held=layers.in_flight,
        memory_limit=devices.memory_limit,
        cut=lambda sender, receiver, at: devices.transfer_s(sender, receiver, layers.outputs[at - 1]),
    )


def shortage_costs(layers: LayerSpecs, devices: DeviceSpecs) -> StageCosts:
    """Missing bytes per device, over the same allowed cuts."""
    time = time_costs(layers, devices)
    return StageCosts(
        load_prefix=[layers.memory_prefix],
        entry=layers.input_bytes,
        slope=lambda _, to_end: layers.in_flight(to_end),
        credit=devices.memory_limit,
        memory_prefix=[0.0] * (len(layers) + 1),
        inflow=[0.0] * len(layers),
        versions_held=layers.in_flight,
        memory_limit=lambda _: math.inf,
        cut=lambda sender, receiver, at: math.inf if math.isinf(time.cut(sender, receiver, at)) else 0.0,
    )
