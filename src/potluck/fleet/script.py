"""All that happens to a fleet by itself, as one stream of changes: its faults and its traces, drawn from one seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from potluck.fleet.devices import Device
from potluck.fleet.faults import Change, Slow, in_order, streams
from potluck.fleet.traces import Trace

if TYPE_CHECKING:
    from potluck.fleet import Fleet

__all__ = ["script", "speed"]

Rng = Callable[[str], np.random.Generator]
Piece = tuple[float, float]


def script(fleet: Fleet, rng: Rng) -> tuple[Iterator[Change], set[str]]:
    """Every change to come in order of time (all but the changes of speed), and who is absent at first."""
    faults = [fault for fault in fleet.faults if not isinstance(fault, Slow)]
    found, absent = streams(faults, [device.name for device in fleet.members], rng)
    for device in fleet.members:
        if device.available.steady is None:
            found.append(_presence(device, rng(f"available/{device.name}")))
            absent |= (
                {device.name} if _level_at_start(device.available, rng(f"available/{device.name}")) < 0.5 else set()
            )
        elif device.available.steady < 0.5:
            absent.add(device.name)
        if device.link.quality.steady is None:
            found.append(_bandwidth(device, rng(f"quality/{device.name}")))
    return in_order(found), absent


def speed(fleet: Fleet, device: Device, rng: Rng) -> Iterator[Piece]:
    """A device's speed in pieces: its trace times the slow-downs that the fault script holds for it."""
    slow = [
        (rule, fault) for rule, fault in enumerate(fleet.faults) if isinstance(fault, Slow) and fault.names(device.name)
    ]
    parts = [device.speed.pieces(rng(f"speed/{device.name}"))] if device.speed.steady is None else []
    steady = device.speed.steady if device.speed.steady is not None else 1.0
    if slow:
        parts += [_slowdowns(fault.stream(device.name, rng(f"slow/{rule}/{device.name}"))) for rule, fault in slow]
    return _product(steady, parts)


def _product(steady: float, parts: Sequence[Iterator[Piece]]) -> Iterator[Piece]:
    """The product of piecewise constant levels, itself in pieces."""
    if not parts:
        yield math.inf, steady
        return
    heads = [next(part) for part in parts]
    while True:
        until = min(head[0] for head in heads)
        yield until, steady * math.prod(head[1] for head in heads)
        if math.isinf(until):
            return
        heads = [next(part) if head[0] <= until else head for head, part in zip(heads, parts, strict=True)]


def _slowdowns(changes: Iterator[Change]) -> Iterator[Piece]:
    level = 1.0
    for change in changes:
        if change.at > 0:
            yield change.at, level
        level = change.value
    yield math.inf, level


def _presence(device: Device, rng: np.random.Generator) -> Iterator[Change]:
    """The device leaves where its availability falls below one half and starts where it rises above."""
    here: bool | None = None
    start = 0.0
    for until, level in device.available.pieces(rng):
        if here is not None:
            what = "" if (level >= 0.5) == here else "start" if level >= 0.5 else "leave"
            yield Change(start, device.name, what)  # a change of nothing keeps an endless trace from being run through
        here = level >= 0.5
        start = until


def _level_at_start(trace: Trace, rng: np.random.Generator) -> float:
    return next(iter(trace.pieces(rng)))[1]


def _bandwidth(device: Device, rng: np.random.Generator) -> Iterator[Change]:
    start = 0.0
    for until, level in device.link.quality.pieces(rng):
        yield Change(start, device.name, "bandwidth", max(level, 1e-9))
        start = until
