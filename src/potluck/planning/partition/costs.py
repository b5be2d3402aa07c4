"""What the solvers minimise the largest of: seconds per batch, or, to explain a failure, bytes that are lacking.

Both have the same shape, which is all that the solvers rely on: a run of layers costs more the longer it is, it
stops fitting a device at some length, and a cut between two devices costs something of its own.
A stage holds as many versions as there are stages from it to the end, so solvers work from the end backwards.
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
    """The price of runs and cuts; `load` and `bulk` are prefix sums over layers."""

    load: Sequence[float]
    slope: Callable[[int, int], float]  # of a device with a number of versions
    credit: Callable[[int], float]
    bulk: Sequence[float]
    room: Callable[[int], float]
    cut: Callable[[int, int, int], float]  # between a device and its successor, before a layer

    @property
    def layers(self) -> int:
        return len(self.load) - 1

    def run(self, device: int, versions: int, begin: int, end: int) -> float:
        return self.slope(device, versions) * (self.load[end] - self.load[begin]) - self.credit(device)

    def fits(self, device: int, versions: int, begin: int, end: int) -> bool:
        return versions * (self.bulk[end] - self.bulk[begin]) <= self.room(device)

    def beyond_last(self) -> list[float]:
        """The cost of what follows the last stage, by the layer where it ends: it must end at the end."""
        return [math.inf] * self.layers + [-math.inf]


def seconds(layers: Layers, devices: Devices) -> Costs:
    """Time per batch, within the devices' memory."""
    return Costs(
        load=layers.elapsed,
        slope=lambda device, _: devices.capacities[device],
        credit=lambda _: 0.0,
        bulk=layers.held,
        room=devices.room,
        cut=lambda sender, receiver, at: devices.transfer(sender, receiver, layers.outputs[at - 1]),
    )


def shortage(layers: Layers, devices: Devices) -> Costs:
    """Bytes that a device lacks, over the same allowed cuts."""
    time = seconds(layers, devices)
    return Costs(
        load=layers.held,
        slope=lambda _, versions: versions,
        credit=devices.room,
        bulk=[0.0] * (len(layers) + 1),
        room=lambda _: math.inf,
        cut=lambda sender, receiver, at: math.inf if math.isinf(time.cut(sender, receiver, at)) else 0.0,
    )
