"""An admitted device lies in every number it sends during a live run: updates, samples and records."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import potluck
from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from benchmarks.faults.lying_node import take_part_lying
from potluck.journal import Instant, RecordDecoder, read_journal
from potluck.run.live_run import LiveRun
from potluck.worlds.live.handshake_messages import JoinRequest
from potluck.worlds.live.zenoh_session import Endpoint

__all__ = ["SCENARIO"]

_LIAR = "d-3"
_BLAME = ("refused", "clipped", "lost", "late", "records refused")


def _job(context: ScenarioContext) -> dict[str, Any]:
    rounds = context.size["rounds"]
    return {
        "recipe": "fedavg",
        "task": {"model": "mlp", "data": "digits", "options": {"hidden": [32]}},
        "fleet": {"devices": [{"name": "d", "count": 4, "flops": "20 MFLOP/s"}], "lease": "2 s"},
        "rounds": {"least": 4, "patience": "90 s"},
        "stop": {"rounds": rounds},
        "evaluate": rounds,
        "seed": context.seed,
    }


class _LiarInstead(potluck.LiveObserver):
    """Replaces one device by the liar when the run begins."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()
        self._lying: asyncio.Future[str] | None = None

    def on_begin(self, run: LiveRun) -> None:
        assert run.devices is not None
        run.devices.kill_device(_LIAR)
        request = JoinRequest(name=_LIAR, token=run.issue_token())
        endpoint = Endpoint(connect=(run.locator,), lease=2.0)
        self._lying = asyncio.ensure_future(take_part_lying(endpoint, request, run.store.job, self.told))


def measure(context: ScenarioContext) -> list[Figure]:
    honest = potluck.simulate(_job(context), folder=context.folder / "honest", threads=0)
    observer, options = _LiarInstead(), potluck.LabOptions(120.0, emulate_fleet=False, play_faults=False)
    result = potluck.lab(_job(context), folder=context.folder / "run", options=options, observer=observer)
    context.show(f"{result.status}: {result.reason}; lies told: {dict(observer.told)}")
    decoder = RecordDecoder()
    records = list(read_journal(context.folder / "run" / "journal.jsonl", decoder))
    blamed = {record.node for record in records if isinstance(record, Instant) and record.name in _BLAME} - {_LIAR}
    lost = 100 * (honest.summary["accuracy"] - (result.summary["accuracy"] or 0.0))
    return [
        Figure(
            name="runs that ended early",
            unit="",
            measured=int(result.status != "done"),
            goal=Goal("≤", 0),
            executed="live",
        ),
        Figure(name="honest devices blamed", unit="", measured=len(blamed), goal=Goal("≤", 0), executed="live"),
        Figure(
            name="journal lines that cannot be read",
            unit="",
            measured=decoder.unreadable,
            goal=Goal("≤", 0),
            executed="live",
        ),
        Figure(
            name="accuracy lost against a run without lies",
            unit="points",
            measured=lost,
            goal=Goal("≤", 4.0),
            executed="live",
        ),
        Figure(name="kinds of lies told", unit="", measured=len(observer.told), goal=Goal("≥", 4), executed="live"),
        Figure(name="lies told", unit="", measured=observer.told.total(), executed="live"),
    ]


SCENARIO = FaultScenario(
    title="a device that lies",
    clause="An admitted device that sends 3e38, a million times too much, a million samples and NaN costs nothing.",
    executed="live",
    measure=measure,
    quick={"rounds": 30},
    full={"rounds": 100},
    quick_s=8.0,
    full_s=60.0,
)
