"""The leader is killed again and again at random instants; its standby takes over, and the dead one follows it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import potluck
from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.command_process import wait_until
from benchmarks.faults.committed_rounds import read_commits
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from benchmarks.faults.process_fleet import START_S, rounds_job
from benchmarks.faults.standby_pair import StandbyPair, missing_etcd, newest_version
from potluck.model import weights_file

__all__ = ["SCENARIO"]

_LEASE_S = 2.0  # the shortest that etcd grants
_LONGEST_PAUSE_S = 3.0  # between a commit of the new leader and its death


def measure(context: ScenarioContext) -> list[Figure]:
    job = rounds_job(devices=context.size["devices"], hidden=context.size["hidden"], lease_s=5.0)
    draw = random.Random(context.seed)
    waits: list[float] = []  # of takeovers by a standby that was in sync
    again: list[int] = []  # rounds that a killed leader had committed and the next one computed again
    options = ("--threads", "1", "--throttle", "0.2")
    with StandbyPair(context.folder, job, _LEASE_S, options) as pair:
        wait_until("rounds", lambda: newest_version(pair.runs[0]) >= 3, START_S)
        wait_until("a standby in sync", pair.is_in_sync, START_S)
        for number in range(context.size["kills"]):
            time.sleep(draw.uniform(0.0, _LONGEST_PAUSE_S))
            _kill_leader(pair, waits, again)
            if number % 10 == 9:
                context.show(f"{number + 1} kills, {len(waits)} takeovers by a standby in sync")
        run = pair.stop()
    return _figures(context, job, run, waits, again)


def _kill_leader(pair: StandbyPair, waits: list[float], again: list[int]) -> None:
    leader = pair.leader()
    assert leader is not None
    in_sync = pair.is_in_sync()
    killed_at = time.monotonic()
    pair.kill(leader)
    committed = newest_version(pair.runs[leader])
    copied = newest_version(pair.runs[1 - leader])
    pair.start(leader, standby=True)
    wait_until("the next round", lambda: _leads_beyond(pair, committed), START_S)
    if in_sync:
        waits.append(time.monotonic() - killed_at)
        again.append(committed - copied)


def _leads_beyond(pair: StandbyPair, version: int) -> bool:
    leader = pair.leader()
    return leader is not None and newest_version(pair.runs[leader]) > version


def _figures(
    context: ScenarioContext, job: dict[str, Any], run: Path, waits: Sequence[float], again: Sequence[int]
) -> list[Figure]:
    commits, version = read_commits(run), newest_version(run)
    potluck.simulate({**job, "stop": {"rounds": version}}, folder=context.folder / "unbroken")
    differing = _differing_tensors(run, context.folder / "unbroken")
    limit = _LEASE_S + 2.0
    return [
        Figure(name="kills of the leader", unit="", measured=context.size["kills"], executed="live"),
        Figure(name="takeovers by a standby in sync", unit="", measured=len(waits), executed="live"),
        Figure(name="rounds", unit="", measured=version, executed="live"),
        Figure(
            name="rounds lost",
            unit="",
            measured=commits.skipped + max(0, version - len(commits.lines)),
            goal=Goal("≤", 0),
            executed="live",
        ),
        Figure(
            name="rounds or updates doubled", unit="", measured=commits.repeated, goal=Goal("≤", 0), executed="live"
        ),
        Figure(
            name="tensors that differ from an unbroken run",
            unit="",
            measured=differing,
            goal=Goal("≤", 0),
            executed="live",
        ),
        Figure(
            name="rounds computed again after a kill, most",
            unit="",
            measured=max(again, default=0),
            goal=Goal("≤", 1),
            executed="live",
        ),
        Figure(
            name="from the kill to the next round, median",
            unit="s",
            measured=statistics.median(waits),
            goal=Goal("≤", limit),
            executed="live",
        ),
        Figure(
            name="from the kill to the next round, 95 %",
            unit="s",
            measured=_quantile(waits, 0.95),
            goal=Goal("≤", limit),
            executed="live",
        ),
        Figure(name="from the kill to the next round, longest", unit="s", measured=max(waits), executed="live"),
    ]


def _differing_tensors(first: Path, second: Path) -> int:
    states = []
    for run in (first, second):
        path = run / "checkpoints" / f"{newest_version(run):08d}.safetensors"
        tensors, _ = weights_file.read_checkpoint(path)
        states.append({name: value for name, value in tensors.items() if not name.startswith("memory/")})
    return sum(
        name not in states[0] or name not in states[1] or not torch.equal(states[0][name], states[1][name])
        for name in states[0].keys() | states[1].keys()
    )


def _quantile(values: Sequence[float], fraction: float) -> float:
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))]


SCENARIO = FaultScenario(
    title="kills of the leader",
    clause="A standby takes over within the lease and 2 s; nothing committed is lost or counted twice.",
    executed="live",
    measure=measure,
    quick={"kills": 2, "devices": 2, "hidden": 32},
    full={"kills": 200, "devices": 2, "hidden": 32},
    quick_s=18.0,
    full_s=1500.0,
    needs=missing_etcd,
)
