"""Fault scripts: what goes wrong with which device, at a given time or at a mean rate, drawn from the run's seed.

    [[faults]]
    kind = "crash"; device = "pi4-*"; every = "20 min"; restart = "30 s"

A script becomes a stream of `FleetChange`s ordered by time; a world applies them without knowing the faults.
"""

from __future__ import annotations

import fnmatch
import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, ClassVar, NamedTuple

import msgspec
import numpy as np

from potluck.settings import Part, doc
from potluck.units import Seconds

__all__ = [
    "CrashFault",
    "Fault",
    "FleetChange",
    "HangFault",
    "JoinFault",
    "LeaveFault",
    "MessageLossFault",
    "PartitionFault",
    "RestartFault",
    "SlowdownFault",
    "fault_streams",
    "merge_by_time",
]


class FleetChange(NamedTuple):
    """At `at`, the `what` of `device` becomes `value`."""

    at: float
    device: str
    # "crash" | "start" | "leave" | "link" (0 cuts it, 1 ends one cut) | "lose" (a fraction; its negative ends it)
    # | "slow" | "bandwidth" (the new level) | "" (nothing)
    what: str
    value: float = 1.0


class Fault(Part, frozen=True, kw_only=True):
    """Breaks devices or links at a time or at a rate."""

    device: Annotated[str, doc("Name of the affected device, or a pattern such as `pi4-*` for several.")] = "*"
    at: Annotated[Seconds | None, doc("Time of the only occurrence; give either `at` or `every`.")] = None
    every: Annotated[
        Seconds | None, doc("Mean time between two occurrences on each matching device, exponentially distributed.")
    ] = None

    def __post_init__(self) -> None:
        if (self.at is None) == (self.every is None):
            raise ValueError("give either `at` (a time) or `every` (the mean time between occurrences)")
        if self.every is not None and not self.every > 0:
            raise ValueError("`every` must be above 0")

    changes_speed: ClassVar[bool] = False  # whether it is part of the device's speed over time

    def changes_at(self, at: float, device: str) -> Sequence[FleetChange]:
        raise NotImplementedError

    def matches_device(self, device: str) -> bool:
        return fnmatch.fnmatchcase(device, self.device)

    def starts_absent(self) -> bool:
        """Whether the device is absent until its first change."""
        return False

    def change_stream(self, device: str, rng: np.random.Generator) -> Iterator[FleetChange]:
        """The changes of one device; endless with `every`."""
        if self.at is not None:
            yield from self.changes_at(float(self.at), device)
            return
        assert self.every is not None
        now = 0.0
        while True:
            now += rng.exponential(self.every)
            yield from (batch := self.changes_at(now, device))
            now = max(now, batch[-1].at)


class CrashFault(Fault, frozen=True, kw_only=True, tag="crash"):
    """Kills the device's process; its state and all messages in flight are lost."""

    restart: Annotated[Seconds | None, doc("Time until the device starts again; without it the device stays away.")] = (
        None
    )

    def changes_at(self, at: float, device: str) -> Sequence[FleetChange]:
        crash = FleetChange(at, device, "crash")
        return [crash] if self.restart is None else [crash, FleetChange(at + self.restart, device, "start")]


class RestartFault(Fault, frozen=True, kw_only=True, tag="restart"):
    """Kills the device's process and starts it again at once."""

    def changes_at(self, at: float, device: str) -> Sequence[FleetChange]:
        return [FleetChange(at, device, "crash"), FleetChange(at, device, "start")]


class LeaveFault(Fault, frozen=True, kw_only=True, tag="leave"):
    """Makes the device leave in an orderly way."""

    back: Annotated[Seconds | None, doc("Time until the device returns; without it the device stays away.")] = None

    def changes_at(self, at: float, device: str) -> Sequence[FleetChange]:
        leave = FleetChange(at, device, "leave")
        return [leave] if self.back is None else [leave, FleetChange(at + self.back, device, "start")]


class JoinFault(Fault, frozen=True, kw_only=True, tag="join"):
    """Makes the device join at the given time; with `at` it is absent before."""

    def changes_at(self, at: float, device: str) -> Sequence[FleetChange]:
        return [FleetChange(at, device, "start")]

    def starts_absent(self) -> bool:
        return self.at is not None and self.at > 0


class PartitionFault(Fault, frozen=True, kw_only=True, tag="partition"):
    """Cuts the device's link in both directions."""

    lasting: Annotated[Seconds, doc("Time until the link works again.")] = Seconds(10)

    def changes_at(self, at: float, device: str) -> Sequence[FleetChange]:
        return [FleetChange(at, device, "link", 0.0), FleetChange(at + self.lasting, device, "link", 1.0)]


class SlowdownFault(Fault, frozen=True, kw_only=True, tag="slow"):
    """Slows the device's computation down."""

    changes_speed: ClassVar[bool] = True

    factor: Annotated[float, msgspec.Meta(gt=0.0, le=1.0), doc("Fraction of its speed that the device retains.")] = 0.25
    lasting: Annotated[Seconds, doc("Time until the device has its full speed again.")] = Seconds(60)

    def changes_at(self, at: float, device: str) -> Sequence[FleetChange]:
        return [FleetChange(at, device, "slow", self.factor), FleetChange(at + self.lasting, device, "slow", 1.0)]


class HangFault(Fault, frozen=True, kw_only=True, tag="hang"):
    """Stops the device's computation; the device stays connected, but a step that hangs cannot even be cancelled."""

    lasting: Annotated[Seconds | None, doc("Time until the computation continues; without it, never.")] = None

    changes_speed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every is not None and self.lasting is None:
            raise ValueError("a device that hangs for ever can do so only once; give `lasting`, or `at`")

    def changes_at(self, at: float, device: str) -> Sequence[FleetChange]:
        hang = FleetChange(at, device, "slow", 0.0)
        return [hang] if self.lasting is None else [hang, FleetChange(at + self.lasting, device, "slow", 1.0)]


class MessageLossFault(Fault, frozen=True, kw_only=True, tag="lose"):
    """Drops messages to and from the device."""

    share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0), doc("Fraction of the messages that are lost.")] = 0.2
    lasting: Annotated[Seconds, doc("Time until messages are no longer lost.")] = Seconds(60)

    def changes_at(self, at: float, device: str) -> Sequence[FleetChange]:
        return [
            FleetChange(at, device, "lose", self.share),
            FleetChange(at + self.lasting, device, "lose", -self.share),
        ]


def fault_streams(
    faults: Sequence[Fault], devices: Sequence[str], rng: Callable[[str], np.random.Generator]
) -> tuple[list[Iterator[FleetChange]], set[str]]:
    """One stream of changes for each rule and device that it matches, and the devices that are absent at the start."""
    streams: list[Iterator[FleetChange]] = []
    absent: set[str] = set()
    for rule, fault in enumerate(faults):
        for device in filter(fault.matches_device, devices):
            streams.append(fault.change_stream(device, rng(f"fault/{rule}/{device}")))
            if fault.starts_absent():
                absent.add(device)
    return streams, absent


def merge_by_time(streams: Sequence[Iterator[FleetChange]]) -> Iterator[FleetChange]:
    """Merges streams into one ordered by time; ties keep the order of the streams."""
    return (
        change for *_, change in heapq.merge(*(_with_sort_keys(stream, index) for index, stream in enumerate(streams)))
    )


def _with_sort_keys(stream: Iterator[FleetChange], index: int) -> Iterator[tuple[float, int, int, FleetChange]]:
    return ((change.at, index, number, change) for number, change in enumerate(stream))
