"""A live run whose disk is full for a while, and full again when the run ends."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.command_process import wait_until
from benchmarks.faults.committed_rounds import read_commits
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from benchmarks.faults.process_fleet import START_S, ProcessFleet, rounds_job
from benchmarks.faults.small_disk import fill_disk, missing_for_disks, small_disk
from potluck.journal.storage_warning import read_warning
from potluck.model import weights_file

__all__ = ["SCENARIO"]

_DISK_BYTES = 32 << 20


def measure(context: ScenarioContext) -> list[Figure]:
    """The run's folder is a small disk of its own."""
    job = rounds_job(devices=2, hidden=64)
    with small_disk(context.folder / "run", _DISK_BYTES), ProcessFleet(context.folder, job) as fleet:
        fleet.wait_committed(10)
        rates = [_outage(fleet, context.size["outage_s"]) for _ in range(context.size["outages"])]
        before = time.monotonic()
        time.sleep(context.size["outage_s"])
        normal = fleet.commits.rate(before, time.monotonic())
        _fill_until_noticed(fleet)
        code = fleet.stop()
        errors = [line for line in fleet.coordinator.log.splitlines() if line.startswith("error: ")]
        commits = read_commits(fleet.run)
        weights_file.read_checkpoint(weights_file.latest_checkpoint(fleet.run / "checkpoints"))  # raises if damaged
    caught_up_s, rate = max(seconds for seconds, _ in rates), sum(rate for _, rate in rates) / len(rates)
    return [
        Figure(
            name="rounds missing after an outage", unit="", measured=commits.skipped, goal=Goal("≤", 0), executed="live"
        ),
        Figure(name="rounds doubled", unit="", measured=commits.repeated, goal=Goal("≤", 0), executed="live"),
        Figure(
            name="rounds per second while full, of normal",
            unit="×",
            measured=rate / normal,
            goal=Goal("≥", 0.5),
            executed="live",
        ),
        Figure(
            name="from space to a whole journal and checkpoint",
            unit="s",
            measured=caught_up_s,
            goal=Goal("≤", 5),
            executed="live",
        ),
        Figure(
            name="ends on a full disk without exit code 1",
            unit="",
            measured=int(code != 1),
            goal=Goal("≤", 0),
            executed="live",
        ),
        Figure(
            name="lines that say what was lost",
            unit="",
            measured=len(errors),
            goal=Goal("≥", 1),
            note="; ".join(errors),
            executed="live",
        ),
    ]


def _outage(fleet: ProcessFleet, seconds: float) -> tuple[float, float]:
    """Seconds until everything is written once there is space again, and the rounds per second until then."""
    filler = _fill_until_noticed(fleet)
    first, began = _round_in_memory(fleet), time.monotonic()
    time.sleep(seconds)
    last, ended = _round_in_memory(fleet), time.monotonic()
    filler.unlink()
    caught_up_s = wait_until("the end of the warning", lambda: read_warning(fleet.run) is None, START_S)
    fleet.wait_committed(last)
    return caught_up_s, (last - first) / (ended - began)


def _fill_until_noticed(fleet: ProcessFleet) -> Path:
    """Also use up what the run frees meanwhile."""
    wait_until("the warning", lambda: fill_disk(fleet.run).exists() and read_warning(fleet.run) is not None, START_S)
    return fill_disk(fleet.run)


def _round_in_memory(fleet: ProcessFleet) -> int:
    warning = read_warning(fleet.run)
    if warning is None:
        raise RuntimeError(f"the warning is gone: {fleet.coordinator.log[-600:]}")
    return warning.round


SCENARIO = FaultScenario(
    title="full disk, live",
    clause="A live run trains on while its folder cannot be written, catches up, and says what it lost.",
    executed="live",
    measure=measure,
    quick={"outages": 1, "outage_s": 3.0},
    full={"outages": 10, "outage_s": 6.0},
    quick_s=11.0,
    full_s=120.0,
    needs=missing_for_disks,
)
