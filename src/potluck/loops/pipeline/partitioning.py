"""How the layers are distributed over the devices: the partitioners as parts of a job.

Devices are given in the order of the fleet with the central one first, and are identified by their index.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

import msgspec

from potluck.errors import UserError
from potluck.planning.partition import (
    DeviceSpecs,
    LayerSpecs,
    PipelinePartition,
    evaluate_partition,
    ftpipehd_partition,
    plan_partition,
)
from potluck.settings import Part, doc

__all__ = ["EqualPartitioning", "ManualPartitioning", "OptimalPartitioning", "Partitioning", "PublishedPartitioning"]


class Partitioning(Part, frozen=True, kw_only=True):
    """Assigns layers to devices."""

    @property
    def may_leave_out(self) -> bool:
        """Whether a layout need not use all devices."""
        return False

    def plan_partition(self, layers: LayerSpecs, devices: DeviceSpecs) -> PipelinePartition:
        """The layout; raises UserError if there is none."""
        raise NotImplementedError


class OptimalPartitioning(Partitioning, frozen=True, kw_only=True, tag="optimal"):
    """The shortest period over all cuts."""

    order: Annotated[
        Literal["given", "search"],
        doc("Keep the fleet's order of devices, or search for the best one (up to 10 devices)."),
    ] = "given"
    subset: Annotated[bool, doc("Devices may be left out.")] = True

    @property
    def may_leave_out(self) -> bool:
        return self.subset

    def plan_partition(self, layers: LayerSpecs, devices: DeviceSpecs) -> PipelinePartition:
        order = self.order if len(devices) <= 10 else "given"
        return plan_partition(layers, devices, order=order, subset=self.subset or len(devices) > len(layers), pinned=0)


class PublishedPartitioning(Partitioning, frozen=True, kw_only=True, tag="published"):
    """FTPipeHD's recurrence over the measured speeds; every device takes part."""

    def plan_partition(self, layers: LayerSpecs, devices: DeviceSpecs) -> PipelinePartition:
        def partition_first(count: int) -> PipelinePartition:
            links = [_link_bandwidth(devices, *pair) for pair in pairwise(range(count))]
            partition = ftpipehd_partition(layers.times, layers.outputs, devices.capacities[:count], links)
            return evaluate_partition(partition.cuts, partition.order, layers, devices)

        return _largest_feasible(partition_first, layers, devices)


class EqualPartitioning(Partitioning, frozen=True, kw_only=True, tag="equal"):
    """As if all devices were equally fast (PipeDream)."""

    def plan_partition(self, layers: LayerSpecs, devices: DeviceSpecs) -> PipelinePartition:
        def partition_first(count: int) -> PipelinePartition:
            equal = DeviceSpecs(capacities=[1.0] * count, bandwidth=devices.bandwidth, duplex=devices.duplex)
            partition = plan_partition(layers, equal)
            return evaluate_partition(partition.cuts, partition.order, layers, devices)

        return _largest_feasible(partition_first, layers, devices)


class ManualPartitioning(Partitioning, frozen=True, kw_only=True, tag="cuts"):
    """Given cuts; `optimal` if too few devices are left for them."""

    after: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], doc("Layers after which a stage ends.")]

    def plan_partition(self, layers: LayerSpecs, devices: DeviceSpecs) -> PipelinePartition:
        if len(self.after) >= len(devices):
            return OptimalPartitioning().plan_partition(layers, devices)
        cuts = [layer + 1 for layer in self.after]
        return evaluate_partition(cuts, range(len(cuts) + 1), layers, devices)


def _link_bandwidth(devices: DeviceSpecs, sender: int, receiver: int) -> float:
    one_way = devices.transfer_s(sender, receiver, 1.0) / (1 if devices.duplex else 2)
    return 1 / one_way if one_way else float("inf")


def _largest_feasible(partition_first, layers: LayerSpecs, devices: DeviceSpecs) -> PipelinePartition:  # type: ignore[no-untyped-def]
    """The layout over all devices, or over as many of the first ones as the legal cuts allow."""
    for count in range(min(len(devices), len(layers)), 1, -1):
        try:
            partition: PipelinePartition = partition_first(count)
        except UserError:
            continue
        return partition
    return evaluate_partition((), (0,), layers, devices)
