"""Finds the optimal order and subset of devices by dynamic programming over subsets.

tail(S, d, begin) is the minimal period of the layers from `begin` on, run by exactly the devices of S, with d first:

    tail(S, d, begin) = min over end of max{ run(d, begin, end), beyond(S, d, end) }
    beyond(S, d, end) = min over s in S∖d of max{ cut(d, s, end), tail(S∖d, s, end) }

There are 2^N·N·L entries, each a minimum over an array row, so this is feasible for about ten devices.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from potluck.planning.partition.stage_costs import CutsAndOrder, StageCosts

__all__ = ["MAX_DEVICES", "solve_any_order"]

MAX_DEVICES = 10

Array = NDArray[np.float64]


class SubsetTails:
    """The table tail[subset, first device, first layer], filled from small subsets to large ones."""

    def __init__(self, costs: StageCosts, devices: int) -> None:
        self.costs = costs
        self.devices = devices
        self.cut = _cut_costs(costs, devices)
        self.period: Array = np.full((1 << devices, devices, costs.layers + 1), math.inf)
        for versions in range(1, devices + 1):
            self._fill_subsets(versions)

    def _fill_subsets(self, versions: int) -> None:
        runs = [_run_costs(self.costs, device, versions) for device in range(self.devices)]
        for subset in range(1 << self.devices):
            if subset.bit_count() == versions:
                for device in _subset_devices(subset):
                    both = np.maximum(runs[device], self.cost_beyond(subset, device))
                    self.period[subset, device, :-1] = both.min(axis=1)

    def handover_costs(self, subset: int, device: int) -> Array:
        """The cost of continuing on each other device of the subset, for a cut before each layer."""
        handover: Array = np.maximum(self.cut[device], self.period[subset & ~(1 << device)])
        return handover

    def cost_beyond(self, subset: int, device: int) -> Array:
        if subset == 1 << device:
            return np.array(self.costs.beyond_last())
        beyond: Array = self.handover_costs(subset, device).min(axis=0)
        return beyond

    def trace_layout(self, subset: int, device: int) -> CutsAndOrder:
        """The cuts and the order of a tail that starts at layer 0."""
        cuts, order, begin = [], [device], 0
        while subset != 1 << device:
            run = _run_costs(self.costs, device, subset.bit_count())[begin]
            begin = int(np.argmin(np.maximum(run, self.cost_beyond(subset, device))))
            successor = int(np.argmin(self.handover_costs(subset, device)[:, begin]))
            subset, device = subset & ~(1 << device), successor
            cuts.append(begin)
            order.append(device)
        return tuple(cuts), tuple(order)


def solve_any_order(costs: StageCosts, devices: int, *, subset: bool, pinned: int | None) -> CutsAndOrder | None:
    """Cuts and order of minimal period, with the fewest devices among equals; None if nothing is feasible."""
    tails = SubsetTails(costs, devices)
    all_devices = (1 << devices) - 1
    allowed = sorted(range(1, all_devices + 1), key=int.bit_count) if subset else [all_devices]
    choices = [(members, first) for members in allowed for first in _subset_devices(members) if pinned in (None, first)]
    best = min(choices, key=lambda choice: tails.period[choice[0], choice[1], 0])
    return tails.trace_layout(*best) if tails.period[best[0], best[1], 0] < math.inf else None


def _subset_devices(subset: int) -> list[int]:
    return [device for device in range(subset.bit_length()) if subset >> device & 1]


def _run_costs(costs: StageCosts, device: int, versions: int) -> Array:
    """The cost of running layers [begin, end) on a device; infinite where empty or too large for its memory."""
    load, memory = np.array(costs.load_of(device)), np.array(costs.memory_prefix)
    entry, inflow = np.array(costs.entry)[:, None], np.array(costs.inflow)[:, None]
    price = costs.slope(device, versions) * (load - load[:-1, None] + entry) - costs.credit(device)
    fits = costs.versions_held(versions) * (memory - memory[:-1, None] + inflow) <= costs.memory_limit(device)
    ends = np.arange(len(load))
    runs: Array = np.where(fits & (ends > ends[:-1, None]), price, math.inf)
    return runs


def _cut_costs(costs: StageCosts, devices: int) -> Array:
    cut: Array = np.full((devices, devices, costs.layers + 1), math.inf)
    for sender in range(devices):
        for receiver in set(range(devices)) - {sender}:
            cut[sender, receiver, 1:-1] = [costs.cut(sender, receiver, at) for at in range(1, costs.layers)]
    return cut
