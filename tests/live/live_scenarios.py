"""Live runs for tests: the coordinator in this process, each device in its own, and a scenario beside them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import potluck
from potluck.journal import Span, read_journal
from potluck.model import weights_file
from potluck.run import Result
from potluck.run.live_run import LiveRun
from potluck.worlds.live.zenoh_session import Endpoint
from tests.simulation.runs import rounds
from tests.time_limits import within

LEASE = 1.0
LIMIT_S = 120.0  # for a whole run, on a busy machine

SMALL: dict[str, Any] = {
    "recipe": "fedavg",
    "task": {"model": "mlp", "data": {"kind": "synthetic", "train": 400, "test": 50}, "options": {"hidden": [16]}},
    "fleet": {"devices": [{"name": "d", "count": 4, "flops": "20 MFLOP/s"}], "lease": LEASE},
    "stop": {"rounds": 6},
    "rounds": {"patience": "60 s"},
    "checkpoint": 1,
}


def small_job(**settings: Any) -> dict[str, Any]:
    """The small job with some settings changed; a pipeline has no rounds."""
    job = {**SMALL, **settings}
    return {key: value for key, value in job.items() if key != "rounds"} if "pipeline" in settings else job


class RunControl:
    """Controls a running lab from a scenario: kills and signals its devices, issues tokens."""

    def __init__(self, run: LiveRun) -> None:
        assert run.node is not None
        assert run.devices is not None
        assert run.store.folder is not None
        self.job, self.folder, self.node, self.devices = run.store.job, run.store.folder, run.node, run.devices
        self.admission, self.address, self.progress = run.admission, run.locator, run.store.progress

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(connect=(self.address,), lease=LEASE)

    def token(self, hours: float = 1.0) -> str:
        return self.admission.issue_token(datetime.now(UTC) + timedelta(hours=hours))

    def signal(self, name: str, number: int) -> float:
        """Send a device's process a signal and return the run's time at which it was sent."""
        at = self.node.now()
        os.kill(self.devices.processes[name].pid, number)
        return at

    def kill(self, *names: str) -> float:
        at = min(self.signal(name, signal.SIGKILL) for name in names)
        for name in names:
            self.devices.kill_device(name)  # and reap it
        return at


Scenario = Callable[[RunControl], Coroutine[Any, Any, None]]


class ScenarioObserver(potluck.LiveObserver):
    """Starts a scenario when the run begins."""

    def __init__(self, scenario: Scenario, control: type[RunControl] = RunControl) -> None:
        self._story, self._scene = scenario, control
        self._task: asyncio.Task[None] | None = None

    def on_begin(self, run: LiveRun) -> None:
        self._task = asyncio.ensure_future(self._story(self._scene(run)))

    def check(self, result: Result) -> None:
        """The scenario has finished without an error."""
        assert self._task is not None, result.reason
        assert not self._task.cancelled(), "the run ended before its scenario; give it more rounds"
        self._task.result()


async def nothing(control: RunControl) -> None:
    pass


def run_live(folder: Path, scenario: Scenario = nothing, *, emulate_fleet: bool = False, **settings: Any) -> Result:
    """Run the small job with some settings changed; the scenario starts with the run and must finish before it ends."""
    observer, options = (
        ScenarioObserver(scenario),
        potluck.LabOptions(LIMIT_S, emulate_fleet=emulate_fleet, play_faults=False),
    )
    with within(LIMIT_S):
        result = potluck.lab(small_job(**settings), folder=folder, options=options, observer=observer)
    observer.check(result)
    return result


def tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a run's latest checkpoint."""
    state, _ = weights_file.read_checkpoint(weights_file.latest_checkpoint(folder / "checkpoints"))
    return state


def differing_tensors(first: Path, second: Path) -> list[str]:
    """Names of the tensors that differ between two finished runs, even by a single bit."""
    first_state, second_state = tensors(first), tensors(second)
    return [
        name
        for name in sorted(first_state.keys() | second_state.keys())
        if name not in first_state or name not in second_state or not torch.equal(first_state[name], second_state[name])
    ]


def check_committed_rounds(folder: Path, result: Result, expected_rounds: int) -> None:
    """No committed round is missing or repeated, and no update is counted twice."""
    assert result.status == "done", result.reason
    committed = rounds(folder)
    assert [span.fields["round"] for span in committed] == list(range(expected_rounds)), (
        "a round is missing or repeated"
    )
    turns = [turn for span in committed for _, turn in span.fields["devices"]]
    assert len(turns) == len(set(turns)), "an update was merged twice"
    assert all(span.fields["devices"] for span in committed), "a round without an update was committed"
    assert result.summary["updates"] == len(turns)
    assert all(span.end >= span.start for span in _spans(folder))


def _spans(folder: Path) -> list[Span]:
    return [record for record in read_journal(folder / "journal.jsonl") if isinstance(record, Span)]
