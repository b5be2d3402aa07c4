"""How the layers are laid out over the devices: the partitioners as parts of a job.

Devices come in the order of the fleet with the central one first, and are named by their place in it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

import msgspec

from potluck.errors import UserError
from potluck.planning.partition import Devices, Layers, Partition, evaluate, partition, published
from potluck.settings import Part

__all__ = ["ByHand", "Equal", "Optimal", "Partitioning", "Published"]


class Partitioning(Part, frozen=True, kw_only=True):
    """`partition`: who gets which layers."""

    def plan(self, layers: Layers, devices: Devices) -> Partition:
        """The layout; UserError where there is none."""
        raise NotImplementedError


class Optimal(Partitioning, frozen=True, kw_only=True, tag="optimal"):
    """The exact least period; devices may be left out, and put in the best order."""

    order: Literal["given", "search"] = "given"
    subset: bool = True

    def plan(self, layers: Layers, devices: Devices) -> Partition:
        order = self.order if len(devices) <= 10 else "given"
        return partition(layers, devices, order=order, subset=self.subset or len(devices) > len(layers), pinned=0)


class Published(Partitioning, frozen=True, kw_only=True, tag="published"):
    """FTPipeHD's recurrence over the measured capacities; every device takes part."""

    def plan(self, layers: Layers, devices: Devices) -> Partition:
        def of_first(count: int) -> Partition:
            links = [_rate(devices, *pair) for pair in pairwise(range(count))]
            found = published(layers.times, layers.outputs, devices.capacities[:count], links)
            return evaluate(found.cuts, found.order, layers, devices)

        return _as_many_as_fit(of_first, layers, devices)


class Equal(Partitioning, frozen=True, kw_only=True, tag="equal"):
    """PipeDream's: as if all devices were alike."""

    def plan(self, layers: Layers, devices: Devices) -> Partition:
        def of_first(count: int) -> Partition:
            alike = Devices(capacities=[1.0] * count, bandwidth=devices.bandwidth, duplex=devices.duplex)
            found = partition(layers, alike)
            return evaluate(found.cuts, found.order, layers, devices)

        return _as_many_as_fit(of_first, layers, devices)


class ByHand(Partitioning, frozen=True, kw_only=True, tag="cuts"):
    """Stages that end after the layers `after`; the exact partition where too few devices are left for them."""

    after: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]

    def plan(self, layers: Layers, devices: Devices) -> Partition:
        if len(self.after) >= len(devices):
            return Optimal().plan(layers, devices)
        cuts = [layer + 1 for layer in self.after]
        return evaluate(cuts, range(len(cuts) + 1), layers, devices)


def _rate(devices: Devices, sender: int, receiver: int) -> float:
    one_way = devices.transfer(sender, receiver, 1.0) / (1 if devices.duplex else 2)
    return 1 / one_way if one_way else float("inf")


def _as_many_as_fit(of_first, layers: Layers, devices: Devices) -> Partition:  # type: ignore[no-untyped-def]
    """The layout of all devices, or of as many of the first as there are places to cut."""
    for count in range(min(len(devices), len(layers)), 1, -1):
        try:
            found: Partition = of_first(count)
        except UserError:
            continue
        return found
    return evaluate((), (0,), layers, devices)
