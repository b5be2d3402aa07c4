"""FTPipeHD's partition recurrence as published, in O(N·L²)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from potluck.errors import UserError
from potluck.planning.partition.pipeline_partition import DeviceSpecs, LayerSpecs, PipelinePartition, evaluate_partition

__all__ = ["ftpipehd_partition"]


def ftpipehd_partition(
    times: Sequence[float], outputs: Sequence[float], capacities: Sequence[float], bandwidths: Sequence[float]
) -> PipelinePartition:
    """A(j,0) = T(j);  A(j,n) = min_i max{ A(i,n−1), 2·D_i / BW_{n−1}, C_n·(T(j) − T(i)) }.

    The first device is the reference, so its capacity is 1; if it is not, T(j) is scaled by it.
    """
    if len(bandwidths) != len(capacities) - 1:
        raise UserError(
            f"bandwidths: {len(bandwidths)} links for {len(capacities)} devices; give one fewer than devices"
        )
    layers = LayerSpecs(times=times, outputs=outputs)
    devices = DeviceSpecs(capacities=capacities, bandwidth=lambda i, j: bandwidths[min(i, j)])
    reach = [math.inf] + [capacities[0] * elapsed for elapsed in layers.time_prefix[1:]]
    choices: list[list[int]] = []
    for stage in range(1, len(capacities)):
        reach, chosen = _extend_stage(reach, layers, devices, stage)
        choices.append(chosen)
    if math.isinf(reach[-1]):
        raise UserError(
            "no layout is possible: too few cuts are allowed to give every device a layer; use fewer devices"
        )
    return evaluate_partition(_trace_cuts(choices, len(times)), range(len(capacities)), layers, devices)


def _extend_stage(
    reach: list[float], layers: LayerSpecs, devices: DeviceSpecs, stage: int
) -> tuple[list[float], list[int]]:
    """A(·, stage) and the cut of each entry, from A(·, stage − 1)."""
    further, chosen = [math.inf] * len(reach), [0] * len(reach)
    for end in range(1, len(reach)):
        for cut in range(1, end):
            link = devices.transfer_s(stage - 1, stage, layers.outputs[cut - 1])
            run = devices.capacities[stage] * (layers.time_prefix[end] - layers.time_prefix[cut])
            if max(reach[cut], link, run) < further[end]:
                further[end], chosen[end] = max(reach[cut], link, run), cut
    return further, chosen


def _trace_cuts(choices: list[list[int]], end: int) -> list[int]:
    cuts = []
    for chosen in reversed(choices):
        end = chosen[end]
        cuts.append(end)
    return cuts[::-1]
