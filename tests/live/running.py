"""Live runs for tests: this process leads, the devices are processes of their own, and a story happens meanwhile."""

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
from potluck.model import checkpoint_files
from potluck.run import Result
from potluck.run.live_run import LiveRun
from potluck.worlds.live.zenoh_session import Endpoint
from tests.simulation.runs import rounds
from tests.time_limits import within

LEASE = 1.0
LIMIT_S = 120.0  # of a whole run, on a machine that is busy with others

SMALL: dict[str, Any] = {
    "recipe": "fedavg",
    "task": {"model": "mlp", "data": {"kind": "synthetic", "train": 400, "test": 50}, "options": {"hidden": [16]}},
    "fleet": {"devices": [{"name": "d", "count": 4, "flops": "20 MFLOP/s"}], "lease": LEASE},
    "stop": {"rounds": 6},
    "rounds": {"patience": "60 s"},
    "checkpoint": 1,
}


class Scene:
    """A live run under way, as its story sees it."""

    def __init__(self, run: LiveRun) -> None:
        assert run.node is not None
        assert run.devices is not None
        assert run.store.folder is not None
        self.job, self.folder, self.node, self.crew = run.store.job, run.store.folder, run.node, run.devices
        self.gate, self.address, self.progress = run.admission, run.locator, run.store.progress

    @property
    def place(self) -> Endpoint:
        return Endpoint(connect=(self.address,), lease=LEASE)

    def token(self, hours: float = 1.0) -> str:
        return self.gate.issue_token(datetime.now(UTC) + timedelta(hours=hours))

    def signal(self, name: str, number: int) -> float:
        """Send a device's process a signal; when that was, in the run's time."""
        at = self.node.now()
        os.kill(self.crew.processes[name].pid, number)
        return at

    def kill(self, *names: str) -> float:
        at = min(self.signal(name, signal.SIGKILL) for name in names)
        for name in names:
            self.crew.kill_device(name)  # and bury it
        return at


Story = Callable[[Scene], Coroutine[Any, Any, None]]


class Teller(potluck.LiveObserver):
    """Tells a story once the run begins."""

    def __init__(self, scenario: Story, scene: type[Scene] = Scene) -> None:
        self._story, self._scene = scenario, scene
        self._told: asyncio.Task[None] | None = None

    def on_begin(self, run: LiveRun) -> None:
        self._told = asyncio.ensure_future(self._story(self._scene(run)))

    def check(self, result: Result) -> None:
        """The story is over, and all went as it should."""
        assert self._told is not None, result.reason
        assert not self._told.cancelled(), "the run was over before its story was; give it more rounds"
        self._told.result()


async def nothing(scene: Scene) -> None:
    pass


def run_live(folder: Path, scenario: Story = nothing, *, act_out: bool = False, **settings: Any) -> Result:
    """Lead the small job with some settings changed; the story begins with the run and must be over at its end."""
    teller, options = Teller(scenario), potluck.LabOptions(LIMIT_S, emulate_fleet=act_out, play_faults=False)
    with within(LIMIT_S):
        result = potluck.lab({**SMALL, **settings}, folder=folder, options=options, observer=teller)
    teller.check(result)
    return result


def tensors(folder: Path) -> dict[str, Tensor]:
    """What the newest checkpoint of a run holds."""
    state, _ = checkpoint_files.read_checkpoint(checkpoint_files.latest_checkpoint(folder / "checkpoints"))
    return state


def differing(first: Path, second: Path) -> list[str]:
    """The tensors in which two runs ended differently, by a single bit."""
    first_state, second_state = tensors(first), tensors(second)
    return [
        name
        for name in sorted(first_state.keys() | second_state.keys())
        if name not in first_state or name not in second_state or not torch.equal(first_state[name], second_state[name])
    ]


def check_books(folder: Path, result: Result, expected_rounds: int) -> None:
    """No committed round is lost or there twice, and no update is counted twice."""
    assert result.status == "done", result.reason
    committed = rounds(folder)
    assert [span.fields["round"] for span in committed] == list(range(expected_rounds)), "a round is missing or twice"
    turns = [turn for span in committed for _, turn in span.fields["devices"]]
    assert len(turns) == len(set(turns)), "an update was merged twice"
    assert all(span.fields["devices"] for span in committed), "a round without an update was committed"
    assert result.summary["updates"] == len(turns)
    assert all(span.end >= span.start for span in _spans(folder))


def _spans(folder: Path) -> list[Span]:
    return [record for record in read_journal(folder / "journal.jsonl") if isinstance(record, Span)]
