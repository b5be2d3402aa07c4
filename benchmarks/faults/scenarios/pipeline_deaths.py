"""Stages of a pipeline are killed on a busy machine, one at a time, neighbours together, and the one with the data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.busy_processors import busy_processors
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from benchmarks.faults.process_fleet import ProcessFleet, pipeline_job
from potluck.journal import Instant, read_journal

__all__ = ["SCENARIO"]

_LAG = 2  # `replication.lag` by default
_BETWEEN = 25  # batches from one death to the next
_BUSY = 2  # processes that compute beside the fleet


def measure(context: ScenarioContext) -> list[Figure]:
    size = context.size
    workers = [["d-1"], ["d-2"], ["d-3"]]
    single = _redone(context, "single", workers * size["deaths"], {})
    neighbours = _redone(
        context, "neighbours", [["d-1", "d-2"], ["d-2", "d-3"]] * size["deaths"], {"replication": {"central": 1}}
    )
    first = _redone(context, "first", [["d-0"], ["d-1"]] * size["deaths"], {"data_copies": 2})
    moves = _moves_without_faults(context, size["batches"])
    return [
        _figure("most batches redone after one death", single),
        _figure("after two neighbours at once, central = 1", neighbours),
        _figure("after the one that holds the data, data_copies = 2", first),
        Figure(
            name="moves of layers in 300 batches without faults", unit="", measured=moves * 300 / size["batches"],
            goal=Goal("≤", 3), note=f"{moves} in {size['batches']} batches on a busy machine", executed="live",
        ),
    ]  # fmt: skip


def _figure(name: str, redone: Sequence[int]) -> Figure:
    return Figure(
        name=name, unit="", measured=max(redone), goal=Goal("≤", _LAG), note=f"each: {list(redone)}", executed="live"
    )


def _redone(
    context: ScenarioContext, name: str, deaths: Sequence[Sequence[str]], pipeline: dict[str, Any]
) -> list[int]:
    """The committed batches that were computed again after each of these deaths."""
    job = pipeline_job(devices=4, width=context.size["width"])
    job["pipeline"] |= pipeline
    job["checkpoint"] = 100
    redone = []
    with busy_processors(_BUSY), ProcessFleet(context.folder / name, job) as fleet:
        for dying in deaths:
            fleet.wait_committed(fleet.commits.count + _BETWEEN)
            before = sum(_rollbacks(fleet.run))
            for device in dying:
                fleet.kill(device)
            fleet.wait_committed(fleet.commits.count + 5)
            for device in dying:
                fleet.restart(device)
            redone.append(sum(_rollbacks(fleet.run)) - before)
            context.show(f"{' and '.join(dying)} killed: {redone[-1]} redone")
    return redone


def _moves_without_faults(context: ScenarioContext, batches: int) -> int:
    with (
        busy_processors(_BUSY),
        ProcessFleet(context.folder / "calm", pipeline_job(width=context.size["width"])) as fleet,
    ):
        fleet.wait_committed(batches, seconds=600.0)
        time.sleep(0.5)
        return sum(instant.name == "partition" for instant in _instants(fleet.run)) - 1


def _rollbacks(run: Path) -> list[int]:
    return [
        instant.fields["before"] - instant.fields["to"] for instant in _instants(run) if instant.name == "rolled back"
    ]


def _instants(run: Path) -> list[Instant]:
    return [record for record in read_journal(run / "journal.jsonl") if isinstance(record, Instant)]


SCENARIO = FaultScenario(
    title="deaths of pipeline stages",
    clause="One death costs at most two committed batches, and layers move only where that pays.",
    executed="live",
    measure=measure,
    quick={"deaths": 1, "width": 128, "batches": 300},
    full={"deaths": 4, "width": 256, "batches": 600},
    quick_s=30.0,
    full_s=300.0,
)
