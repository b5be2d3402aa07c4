"""A soak: a fleet under a seeded script of kills, freezes, cuts and coordinator deaths, beside a fleet without faults.

Both fleets run at the same time on the same machine, so that other load on it affects both.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.fault_scenario import ScenarioContext
from benchmarks.faults.process_fleet import FleetNetwork, ProcessFleet
from benchmarks.faults.process_usage import UsageSample, UsageSampler
from benchmarks.shaped_network import ShapedNetwork

__all__ = ["SoakEvent", "SoakFaults", "SoakOutcome", "soak_beside_baseline", "soak_figures", "soak_script"]

_WARM_UP = 3  # commits before the soak begins
_SETTLE_FRACTION = 0.1  # of the time, at its end, in which nothing new happens
_MIB = 2**20
_UNDO = {"kill": "restart", "freeze": "thaw", "cut": "restore", "kill_coordinator": "resume_coordinator"}


@dataclass(frozen=True)
class SoakFaults:
    """How often what happens, and how long it lasts."""

    seconds: float
    kills: int = 0
    freezes: int = 0
    cuts: int = 0
    coordinator_deaths: int = 0
    restart_s: float = 1.0
    freeze_s: tuple[float, float] = (0.5, 4.0)
    cut_s: tuple[float, float] = (0.5, 4.0)


class SoakEvent(NamedTuple):
    """At that second, `action` of the fleet is called, for a device or, if empty, for the coordinator."""

    at: float
    action: str
    device: str
    lasting_s: float


@dataclass(frozen=True)
class SoakOutcome:
    """What was seen of both fleets within the same seconds."""

    seconds: float
    rate: float
    fault_free_rate: float
    standstill_s: float
    fault_free_standstill_s: float
    lost: int
    doubled: int
    redone: int
    ended: Sequence[str]  # processes that ended by themselves
    coordinator: Sequence[UsageSample] = field(default=())
    device: Sequence[UsageSample] = field(default=())


def soak_script(faults: SoakFaults, devices: Sequence[str], seed: int) -> list[SoakEvent]:
    """When what happens to whom; the same for the same seed."""
    generator = random.Random(seed)
    last = faults.seconds * (1 - _SETTLE_FRACTION)
    events = []
    for action, count, lasting in (
        ("kill", faults.kills, (faults.restart_s, faults.restart_s)),
        ("freeze", faults.freezes, faults.freeze_s),
        ("cut", faults.cuts, faults.cut_s),
    ):
        for _ in range(count):
            at, device = generator.uniform(0.0, last), generator.choice(devices)
            events.append(SoakEvent(at, action, device, generator.uniform(*lasting)))
    for number in range(faults.coordinator_deaths):
        at = last * (number + generator.uniform(0.3, 0.7)) / faults.coordinator_deaths
        events.append(SoakEvent(at, "kill_coordinator", "", faults.restart_s))
    return sorted(events)


def soak_beside_baseline(context: ScenarioContext, job: Mapping[str, Any], faults: SoakFaults) -> SoakOutcome:
    """Run the same job twice at once, one of them under the script."""
    with contextlib.ExitStack() as stack:
        machines = 1 + _device_count(job)
        network = stack.enter_context(ShapedNetwork([""] * 2 * machines))
        context.show(f"starting two fleets of {machines - 1} devices")
        fleets = [
            stack.enter_context(ProcessFleet(context.folder / name, job, network=FleetNetwork(network, first)))
            for name, first in (("fault-free", 0), ("soak", machines))
        ]
        for fleet in fleets:
            fleet.wait_committed(_WARM_UP)
        baseline, fleet = fleets
        sampler = stack.enter_context(UsageSampler(fleet.pids))
        start = time.monotonic()
        _play_script(context, fleet, soak_script(faults, fleet.names, context.seed), start + faults.seconds)
        end = time.monotonic()
        for each in fleets:
            each.commits.stop()
        return SoakOutcome(
            seconds=end - start,
            rate=fleet.commits.rate(start, end),
            fault_free_rate=baseline.commits.rate(start, end),
            standstill_s=fleet.commits.longest_standstill_s(start, end),
            fault_free_standstill_s=baseline.commits.longest_standstill_s(start, end),
            lost=fleet.commits.lost() + baseline.commits.lost(),
            doubled=fleet.commits.doubled() + baseline.commits.doubled(),
            redone=fleet.commits.redone(),
            ended=[*fleet.ended_processes(), *baseline.ended_processes()],
            coordinator=sampler.longest_life("coordinator"),
            device=sampler.longest_life(fleet.names[0]),
        )


def _device_count(job: Mapping[str, Any]) -> int:
    return sum(int(device.get("count", 1)) for device in job["fleet"]["devices"])


def _play_script(context: ScenarioContext, fleet: ProcessFleet, script: Sequence[SoakEvent], end: float) -> None:
    """Act out the script until `end`; a device that is down, frozen or cut off already is left alone."""
    start = time.monotonic()
    due = [(event.at, number, event) for number, event in enumerate(script)]
    heapq.heapify(due)
    disturbed: set[str] = set()
    while due:
        at, number, event = heapq.heappop(due)
        time.sleep(max(0.0, start + at - time.monotonic()))
        undo = event.action in _UNDO.values()
        if not undo and event.device in disturbed:
            free = [name for name in fleet.names if name not in disturbed]
            if not event.device or not free:
                heapq.heappush(due, (at + 0.5, number, event))
                continue
            event = event._replace(device=random.Random(number).choice(free))
        context.show(
            f"{time.monotonic() - start:6.1f} s  {event.action} {event.device}  ({fleet.commits.count} committed)"
        )
        getattr(fleet, event.action)(*([event.device] if event.device else []))
        (disturbed.discard if undo else disturbed.add)(event.device)
        if not undo:
            later = event._replace(action=_UNDO[event.action])
            heapq.heappush(due, (time.monotonic() - start + event.lasting_s, number, later))
    time.sleep(max(0.0, end - time.monotonic()))


def soak_figures(outcome: SoakOutcome, least_share: float, most_standstill_s: float) -> list[Figure]:
    """The share of the fault-free throughput first."""
    share = 100 * outcome.rate / outcome.fault_free_rate if outcome.fault_free_rate else 0.0
    note = f"{outcome.rate:.3g} against {outcome.fault_free_rate:.3g} commits per second, side by side"
    return [
        Figure(
            name="of the fault-free throughput",
            unit="%",
            measured=share,
            goal=Goal("≥", least_share),
            note=note,
            executed="live",
        ),
        Figure(
            name="longest standstill",
            unit="s",
            measured=outcome.standstill_s,
            goal=Goal("≤", most_standstill_s),
            note=f"{outcome.fault_free_standstill_s:.2g} s without faults",
            executed="live",
        ),
        Figure(name="committed and lost", unit="", measured=outcome.lost, goal=Goal("≤", 0), executed="live"),
        Figure(name="counted twice", unit="", measured=outcome.doubled, goal=Goal("≤", 0), executed="live"),
        Figure(
            name="processes that ended by themselves",
            unit="",
            measured=len(outcome.ended),
            goal=Goal("≤", 0),
            note="; ".join(outcome.ended),
            executed="live",
        ),
        Figure(name="redone", unit="", measured=outcome.redone, executed="live"),
        *_usage_figures("coordinator", outcome.coordinator),
        *_usage_figures("a device", outcome.device),
    ]


def _usage_figures(who: str, samples: Sequence[UsageSample]) -> list[Figure]:
    """Of the process that lived longest: memory and descriptors at its end, with those at its start."""
    if len(samples) < 2:
        return []
    first, last = samples[len(samples) // 4], samples[-1]
    life = f"after a quarter of its life; the process that lived longest, {last.at - samples[0].at:.0f} s"
    return [
        Figure(
            name=f"memory of {who} at the end", unit="MiB", measured=last.resident_bytes / _MIB,
            note=f"{first.resident_bytes / _MIB:.4g} MiB {life}", executed="live",
        ),
        Figure(
            name=f"descriptors of {who} at the end", unit="", measured=last.descriptors,
            note=f"{first.descriptors} {life}", executed="live",
        ),
    ]  # fmt: skip
