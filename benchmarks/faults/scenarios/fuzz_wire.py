"""Mutated messages on the wire: real processes, a real token, a fresh identity whenever expelled."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from benchmarks.faults.fuzz.wire_attacker import WireAttacker
from benchmarks.faults.process_fleet import ProcessFleet, pipeline_job, rounds_job
from benchmarks.faults.process_usage import UsageSample, UsageSampler

__all__ = ["SCENARIO"]

_HONEST = 2
_WARM_UP = 3  # commits before the attack
_MIB = 2**20
_MOST_GROWTH_MIB = 64.0
_SECONDS_PER_INPUT = 0.05  # at most, with which a busy machine must do
_NOT_REFUSED = re.compile(r"Traceback|Exception in|Exception ignored|panicked|cannot be handled|never retrieved")


class _WireOutcome(NamedTuple):
    """What was seen of one fleet under attack."""

    fed: int
    seconds: float
    identities: int
    expelled: int
    rounds: int  # or batches
    not_refused: Sequence[str]  # lines of the logs
    survived: bool
    lost_or_doubled: int
    coordinator: Sequence[UsageSample]

    @property
    def growth_mib(self) -> float:
        first, last = self.coordinator[len(self.coordinator) // 10], self.coordinator[-1]
        return (last.resident_bytes - first.resident_bytes) / _MIB


def measure(context: ScenarioContext) -> list[Figure]:
    jobs = {"rounds": rounds_job(devices=_HONEST, hidden=16), "pipeline": pipeline_job(devices=_HONEST, width=16)}
    jobs["pipeline"]["pipeline"]["sources"] = [f"d-{number}" for number in range(_HONEST)]
    outcomes = {loop: _attack_fleet(context, loop, job) for loop, job in jobs.items()}
    shown = [line for outcome in outcomes.values() for line in outcome.not_refused]
    for line in shown[:20]:
        context.show(line)
    return [
        Figure(
            name="exceptions that are not refusals", unit="", measured=len(shown), goal=Goal("≤", 0),
            note="; ".join(shown[:3]), executed="live",
        ),
        Figure(
            name="mutated messages that were handled", unit="", goal=Goal("≥", context.size["inputs"]),
            measured=sum(outcome.fed for outcome in outcomes.values()),
            note=f"{sum(outcome.identities for outcome in outcomes.values())} identities", executed="live",
        ),
        *(figure for loop, outcome in outcomes.items() for figure in _fleet_figures(loop, outcome)),
    ]  # fmt: skip


def _fleet_figures(loop: str, outcome: _WireOutcome) -> list[Figure]:
    note = f"{outcome.fed / outcome.seconds:.0f} messages per second, {outcome.expelled} expulsions"
    last = outcome.coordinator[-1]
    return [
        Figure(
            name=f"{loop}: commits meanwhile",
            unit="",
            measured=outcome.rounds,
            goal=Goal("≥", 1),
            note=note,
            executed="live",
        ),
        Figure(
            name=f"{loop}: all honest processes survive",
            unit="",
            measured=float(outcome.survived),
            goal=Goal("≥", 1),
            executed="live",
        ),
        Figure(
            name=f"{loop}: lost or counted twice",
            unit="",
            measured=outcome.lost_or_doubled,
            goal=Goal("≤", 0),
            executed="live",
        ),
        Figure(
            name=f"{loop}: memory growth of the coordinator after the first tenth",
            unit="MiB",
            measured=outcome.growth_mib,
            goal=Goal("≤", _MOST_GROWTH_MIB),
            note=f"{last.resident_bytes / _MIB:.0f} MiB and {last.descriptors} descriptors at the end",
            executed="live",
        ),
    ]


def _attack_fleet(context: ScenarioContext, loop: str, job: dict[str, Any]) -> _WireOutcome:
    honest = [f"d-{number}" for number in range(_HONEST)]
    job = _with_hostile_names(job, context.size["names"])
    with ProcessFleet(context.folder / loop, job, started=honest, serve_options=("--wait", "3")) as fleet:
        fleet.wait_committed(_WARM_UP)
        hostile = {name: fleet.invitations[name] for name in fleet.members if name not in honest}
        attacker = WireAttacker(hostile, loop, context.seed, victim=honest[0])
        with UsageSampler(fleet.pids) as usage:
            before, started_at = fleet.commits.count, time.monotonic()
            fed = _attack_in_parts(context, attacker, context.size["inputs"] // 2)
            seconds = time.monotonic() - started_at
            fleet.wait_committed(fleet.commits.count + 1)
        processes = (fleet.coordinator, *fleet.devices.values())
        logs = "\n".join(process.log for process in processes).splitlines()
        return _WireOutcome(
            fed=fed,
            seconds=seconds,
            identities=attacker.identities,
            expelled=attacker.unanswered,
            rounds=fleet.commits.count - before,
            not_refused=[line for line in logs if _NOT_REFUSED.search(line)],
            survived=all(process.is_running for process in processes),
            lost_or_doubled=fleet.commits.lost() + fleet.commits.doubled(),
            coordinator=usage.longest_life("coordinator"),
        )


def _attack_in_parts(context: ScenarioContext, attacker: WireAttacker, inputs: int) -> int:
    fed, deadline = 0, time.monotonic() + 60.0 + _SECONDS_PER_INPUT * inputs
    while fed < inputs and time.monotonic() < deadline:
        part = attacker.attack(min(max(500, inputs // 20), inputs - fed), deadline)
        fed += part
        context.show(f"{fed:,} of {inputs:,} handled, {attacker.identities} identities")
    return fed


def _with_hostile_names(job: dict[str, Any], names: int) -> dict[str, Any]:
    """The job with devices `m-…`, as which a hostile one may join."""
    (device,) = job["fleet"]["devices"]
    job["fleet"]["devices"] = [device, {**device, "name": "m", "count": names}]
    job["task"]["data"]["train"] = 64 * (_HONEST + names)
    return job


SCENARIO = FaultScenario(
    title="mutated messages, on the wire",
    clause="Whatever a peer sends over a connection is handled or refused, and the others train on.",
    executed="live",
    measure=measure,
    quick={"inputs": 2_000, "names": 40},
    full={"inputs": 100_000, "names": 300},
    quick_s=24.0,
    full_s=600.0,
)
