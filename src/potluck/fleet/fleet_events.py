"""Turns a fleet's faults and traces into one stream of changes, ordered by time and drawn from the run's seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from potluck.fleet.faults import FleetChange, fault_streams, merge_by_time
from potluck.fleet.fleet_devices import COORDINATOR, Device
from potluck.fleet.traces import LevelInterval, Trace

if TYPE_CHECKING:
    from potluck.fleet import Fleet

__all__ = ["device_speed", "fleet_changes"]

Rng = Callable[[str], np.random.Generator]


def fleet_changes(fleet: Fleet, rng: Rng) -> tuple[Iterator[FleetChange], set[str]]:
    """All changes except those of speed, ordered by time, and the devices that are absent at the start."""
    faults = [fault for fault in fleet.faults if not fault.changes_speed]
    streams, absent = fault_streams(faults, [device.name for device in fleet.members], rng)
    for device in fleet.members:
        if device.available.constant_level is None:
            streams.append(_availability_changes(device, rng(f"available/{device.name}")))
            absent |= (
                {device.name} if _initial_level(device.available, rng(f"available/{device.name}")) < 0.5 else set()
            )
        elif device.available.constant_level < 0.5:
            absent.add(device.name)
    links = [*((device.name, device.link) for device in fleet.members), (COORDINATOR, fleet.coordinator.resolved_link)]
    for name, link in links:
        if link.quality.constant_level != 1.0:
            streams.append(_bandwidth_changes(name, link.quality, rng(f"quality/{name}")))
    return merge_by_time(streams), absent


def device_speed(fleet: Fleet, device: Device, rng: Rng) -> Iterator[LevelInterval]:
    """A device's speed over time: its trace multiplied by the slowdowns and hangs that the fault script has for it."""
    slow = [
        (rule, fault)
        for rule, fault in enumerate(fleet.faults)
        if fault.changes_speed and fault.matches_device(device.name)
    ]
    varying = [device.speed.level_intervals(rng(f"speed/{device.name}"))] if device.speed.constant_level is None else []
    steady = device.speed.constant_level if device.speed.constant_level is not None else 1.0
    if slow:
        varying += [
            _slowdown_levels(fault.change_stream(device.name, rng(f"slow/{rule}/{device.name}")))
            for rule, fault in slow
        ]
    return _multiply_levels(steady, varying)


def _multiply_levels(steady: float, varying: Sequence[Iterator[LevelInterval]]) -> Iterator[LevelInterval]:
    """The product of piecewise constant levels."""
    if not varying:
        yield math.inf, steady
        return
    heads = [next(intervals) for intervals in varying]
    while True:
        if (math.inf, 0.0) in heads:  # whatever the others are from now on
            yield math.inf, 0.0
            return
        until = min(head[0] for head in heads)
        yield until, steady * math.prod(head[1] for head in heads)
        if math.isinf(until):
            return
        heads = [next(intervals) if head[0] <= until else head for head, intervals in zip(heads, varying, strict=True)]


def _slowdown_levels(changes: Iterator[FleetChange]) -> Iterator[LevelInterval]:
    level = 1.0
    for change in changes:
        if change.at > 0:
            yield change.at, level
        level = change.value
    yield math.inf, level


def _availability_changes(device: Device, rng: np.random.Generator) -> Iterator[FleetChange]:
    """The device leaves when its availability falls below one half and starts when it rises to it again."""
    was_available: bool | None = None
    start = 0.0
    for until, level in device.available.level_intervals(rng):
        if was_available is not None:
            what = "" if (level >= 0.5) == was_available else "start" if level >= 0.5 else "leave"
            # A change of nothing is yielded too: a filter would search an endless constant trace for ever.
            yield FleetChange(start, device.name, what)
        was_available = level >= 0.5
        start = until


def _initial_level(trace: Trace, rng: np.random.Generator) -> float:
    return next(iter(trace.level_intervals(rng)))[1]


def _bandwidth_changes(name: str, quality: Trace, rng: np.random.Generator) -> Iterator[FleetChange]:
    start = 0.0
    for until, level in quality.level_intervals(rng):
        yield FleetChange(start, name, "bandwidth", max(level, 1e-9))
        start = until
