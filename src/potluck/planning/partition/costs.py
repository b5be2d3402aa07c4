"""What the solvers minimise the largest of: seconds per batch, or, to explain a failure, bytes that are lacking.

Both have the same shape, which is all that the solvers rely on: a run of layers costs more the longer it is, it
stops fitting a device at some length, and a cut between two devices costs something of its own.
How many versions a stage holds depends on the stages from it to the end, so solvers work from the end backwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from potluck.planning.partition.layout import Devices, Layers

__all__ = ["Costs", "Found", "seconds", "shortage"]

Found = tuple[tuple[int, ...], tuple[int, ...]]  # cuts and order


@dataclass(frozen=True)
class Costs:
    """The price of runs and cuts; `load` and `bulk` are prefix sums over layers.

    `entry` and `inflow` are what it adds to the one and the other that a run begins with a layer.
    """

    load: Sequence[float]
    entry: Sequence[float]
    slope: Callable[[int, int], float]  # of a device with so many stages from it to the end
    credit: Callable[[int], float]
    bulk: Sequence[float]
    inflow: Sequence[float]
    copies: Callable[[int], int]  # with so many stages to the end
    room: Callable[[int], float]
    cut: Callable[[int, int, int], float]  # between a device and its successor, before a layer

    @property
    def layers(self) -> int:
        return len(self.load) - 1

    def run(self, device: int, to_end: int, begin: int, end: int) -> float:
        load = self.load[end] - self.load[begin] + self.entry[begin]
        return self.slope(device, to_end) * load - self.credit(device)

    def fits(self, device: int, to_end: int, begin: int, end: int) -> bool:
        return self.copies(to_end) * (self.bulk[end] - self.bulk[begin] + self.inflow[begin]) <= self.room(device)

    def beyond_last(self) -> list[float]:
        """The cost of what follows the last stage, by the layer where it ends: it must end at the end."""
        return [math.inf] * self.layers + [-math.inf]


def seconds(layers: Layers, devices: Devices) -> Costs:
    """Time per batch, within the devices' memory."""
    return Costs(
        load=layers.elapsed,
        entry=[0.0] * len(layers),
        slope=lambda device, _: devices.capacities[device],
        credit=lambda _: 0.0,
        bulk=layers.held,
        inflow=layers.arriving,
        copies=layers.in_flight,
        room=devices.room,
        cut=lambda sender, receiver, at: devices.transfer(sender, receiver, layers.outputs[at - 1]),
    )


def shortage(layers: Layers, devices: Devices) -> Costs:
    """Bytes that a device lacks, over the same allowed cuts."""
    time = seconds(layers, devices)
    return Costs(
        load=layers.held,
        entry=layers.arriving,
        slope=lambda _, to_end: layers.in_flight(to_end),
        credit=devices.room,
        bulk=[0.0] * (len(layers) + 1),
        inflow=[0.0] * len(layers),
        copies=layers.in_flight,
        room=lambda _: math.inf,
        cut=lambda sender, receiver, at: math.inf if math.isinf(time.cut(sender, receiver, at)) else 0.0,
    )
