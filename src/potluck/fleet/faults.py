"""Fault scripts: what goes wrong with which device, at a time or at a rate, all drawn from the run's seed.

    [[faults]]
    kind = "crash"; device = "pi4-*"; every = "20 min"; restart = "30 s"

A script becomes a stream of plain `Change`s in order of time; a world applies them and knows no more.
"""

from __future__ import annotations

import fnmatch
import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from potluck.settings import Part
from potluck.units import Seconds

__all__ = ["Change", "Crash", "Fault", "Join", "Leave", "Lose", "Partition", "Restart", "Slow", "in_order", "streams"]


class Change(NamedTuple):
    """At `at`, the `what` of `device` becomes `value`."""

    at: float
    device: str
    what: str  # "crash" | "start" | "leave" | "link" (0 cut, 1 end of a cut) | "lose" (a share; its negative ends it)
    #            | "slow" | "bandwidth" (the new level) | "" (nothing)
    value: float = 1.0


class Fault(Part, frozen=True, kw_only=True):
    """One rule: which devices (a name or a pattern such as `pi4-*`), and when."""

    device: str = "*"
    at: Seconds | None = None
    every: Seconds | None = None

    def __post_init__(self) -> None:
        if (self.at is None) == (self.every is None):
            raise ValueError("give either `at` (a time) or `every` (the mean time between two of them)")
        if self.every is not None and not self.every > 0:
            raise ValueError("`every` must be above 0")

    def changes(self, at: float, device: str) -> Sequence[Change]:
        raise NotImplementedError

    def names(self, device: str) -> bool:
        return fnmatch.fnmatchcase(device, self.device)

    def starts_absent(self) -> bool:
        """Whether the device is not there before its first change."""
        return False

    def stream(self, device: str, rng: np.random.Generator) -> Iterator[Change]:
        """The changes of one device, endless for a rate."""
        if self.at is not None:
            yield from self.changes(float(self.at), device)
            return
        assert self.every is not None
        now = 0.0
        while True:
            now += rng.exponential(self.every)
            yield from (batch := self.changes(now, device))
            now = max(now, batch[-1].at)


class Crash(Fault, frozen=True, kw_only=True, tag="crash"):
    """The process dies at once; all it held and all that is on the wire is lost. `restart` brings it back later."""

    restart: Seconds | None = None

    def changes(self, at: float, device: str) -> Sequence[Change]:
        crash = Change(at, device, "crash")
        return [crash] if self.restart is None else [crash, Change(at + self.restart, device, "start")]


class Restart(Fault, frozen=True, kw_only=True, tag="restart"):
    """The process is killed (if it runs) and started anew at once."""

    def changes(self, at: float, device: str) -> Sequence[Change]:
        return [Change(at, device, "crash"), Change(at, device, "start")]


class Leave(Fault, frozen=True, kw_only=True, tag="leave"):
    """The device says goodbye and goes; `back` brings it back later."""

    back: Seconds | None = None

    def changes(self, at: float, device: str) -> Sequence[Change]:
        leave = Change(at, device, "leave")
        return [leave] if self.back is None else [leave, Change(at + self.back, device, "start")]


class Join(Fault, frozen=True, kw_only=True, tag="join"):
    """The device is not there before."""

    def changes(self, at: float, device: str) -> Sequence[Change]:
        return [Change(at, device, "start")]

    def starts_absent(self) -> bool:
        return self.at is not None and self.at > 0


class Partition(Fault, frozen=True, kw_only=True, tag="partition"):
    """The device's link is cut, in both directions, for `lasting`."""

    lasting: Seconds = Seconds(10)

    def changes(self, at: float, device: str) -> Sequence[Change]:
        return [Change(at, device, "link", 0.0), Change(at + self.lasting, device, "link", 1.0)]


class Slow(Fault, frozen=True, kw_only=True, tag="slow"):
    """The device computes at `factor` of its speed for `lasting`."""

    factor: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.25
    lasting: Seconds = Seconds(60)

    def changes(self, at: float, device: str) -> Sequence[Change]:
        return [Change(at, device, "slow", self.factor), Change(at + self.lasting, device, "slow", 1.0)]


class Lose(Fault, frozen=True, kw_only=True, tag="lose"):
    """A `share` of the device's messages is lost for `lasting`."""

    share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.2
    lasting: Seconds = Seconds(60)

    def changes(self, at: float, device: str) -> Sequence[Change]:
        return [Change(at, device, "lose", self.share), Change(at + self.lasting, device, "lose", -self.share)]


def streams(
    faults: Sequence[Fault], devices: Sequence[str], rng: Callable[[str], np.random.Generator]
) -> tuple[list[Iterator[Change]], set[str]]:
    """One stream of changes for each rule and device it names, and who is absent at first."""
    found: list[Iterator[Change]] = []
    absent: set[str] = set()
    for rule, fault in enumerate(faults):
        for device in filter(fault.names, devices):
            found.append(fault.stream(device, rng(f"fault/{rule}/{device}")))
            if fault.starts_absent():
                absent.add(device)
    return found, absent


def in_order(found: Sequence[Iterator[Change]]) -> Iterator[Change]:
    """Many streams as one in order of time, ties by the streams' order."""
    return (change for *_, change in heapq.merge(*(_keyed(stream, place) for place, stream in enumerate(found))))


def _keyed(stream: Iterator[Change], place: int) -> Iterator[tuple[float, int, int, Change]]:
    return ((change.at, place, number, change) for number, change in enumerate(stream))
