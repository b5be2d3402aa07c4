"""Real processes whose work hangs while their heartbeats go on: left out, asked back, and welcomed when they answer."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

import potluck
from potluck.data import from_torch
from potluck.run.live_run import LiveObserver
from potluck.run.run_store import RunStore
from tests.live.live_scenarios import LIMIT_S
from tests.simulation.runs import instants, rounds
from tests.time_limits import within

FLEET = {"devices": [{"name": "d", "count": 3, "flops": "20 MFLOP/s"}], "lease": 1.0}


class BlockingSamples(Dataset[tuple[Tensor, Tensor]]):
    """Reading a sample blocks in one device's process for as long as a file exists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._coordinator = os.getpid()

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        while (self._folder / "hang").exists() and self._is_victim():
            time.sleep(0.05)
        return torch.full((4,), index / 48), torch.tensor(index % 3)

    def _is_victim(self) -> bool:
        """Whether this process is the first device that asked."""
        if os.getpid() == self._coordinator:
            return False
        with contextlib.suppress(FileExistsError):
            (self._folder / "victim").symlink_to(str(os.getpid()))  # atomic, and only the first succeeds
        return os.readlink(self._folder / "victim") == str(os.getpid())


ROUNDS_OF_PHASE = (5, 5, 50)  # the last is long enough for the device's first update after its return to be merged


class HangObserver(LiveObserver):
    """Lets a device hang after some rounds, and continue once the others have gone on without it."""

    def __init__(self, folder: Path) -> None:
        self._flag = folder / "hang"
        self._phase = self._since = 0

    def on_round(self, store: RunStore, now: float) -> None:
        left_out, waited = bool(store.progress.left_out), store.progress.round - self._since
        if self._phase == 3 or waited < ROUNDS_OF_PHASE[self._phase] or left_out != (self._phase == 1):
            return
        self._phase, self._since = self._phase + 1, store.progress.round
        if self._phase == 1:
            self._flag.touch()
        else:
            self._flag.unlink(missing_ok=True)

    def should_stop(self) -> bool:
        return self._phase == 3


LEAST_WITHOUT = {"all": 5, "buffered": 1}  # rounds; with `buffered` most of them are over before it is left out
BARRIERS: dict[str, dict[str, Any]] = {"all": {"kind": "all"}, "buffered": {"kind": "buffered", "size": 2}}


@pytest.mark.parametrize("barrier", BARRIERS)
def test_a_device_whose_transform_blocks_costs_one_round_and_returns(tmp_path: Path, barrier: str) -> None:
    data = BlockingSamples(tmp_path)
    task = potluck.Task(torch.nn.Linear(4, 3), from_torch(data, data))
    job: dict[str, Any] = {
        "task": "own", "recipe": "fedavg", "fleet": FLEET, "stop": {"rounds": 1_000_000}, "evaluate": 0,
        "rounds": {"barrier": BARRIERS[barrier], "retry": "500 ms", "turn_patience": "3 s", "patience": "60 s"},
    }  # fmt: skip
    with within(LIMIT_S):
        options = potluck.LabOptions(LIMIT_S, emulate_fleet=False)
        result = potluck.lab(job, folder=tmp_path / "run", task=task, options=options, observer=HangObserver(tmp_path))
    assert result.status == "interrupted", result.reason
    (left_out,), (back,) = instants(tmp_path / "run", "left out"), instants(tmp_path / "run", "answers again")
    assert left_out.node == back.node
    lost = [event for event in instants(tmp_path / "run", "lost") if event.node == left_out.node]
    assert not any(left_out.at - 3.0 < event.at < back.at for event in lost), "its heartbeats went on"
    merged = [(span.end, {name for name, _ in span.fields["devices"]}) for span in rounds(tmp_path / "run")]
    without = [devices for end, devices in merged if left_out.at < end < back.at]
    assert len(without) >= LEAST_WITHOUT[barrier]
    assert not any(left_out.node in devices for devices in without)
    assert any(left_out.node in devices for end, devices in merged if end > back.at)
    turns = [turn for span in rounds(tmp_path / "run") for _, turn in span.fields["devices"]]
    assert len(turns) == len(set(turns))


def test_a_pipeline_goes_on_without_a_stage_that_hangs(tmp_path: Path) -> None:
    hang = {"kind": "hang", "device": "d-1", "at": "4 s"}
    data = {"kind": "synthetic", "train": 200, "test": 20}
    job = {
        "recipe": "ftpipehd",
        "task": {"model": "mlp", "data": data, "options": {"hidden": [16] * 3}},
        "fleet": {**FLEET, "faults": [hang]},
        "stop": {"time": "25 s"},
        "evaluate": 0,
        # A low rate: with many batches in flight the default rate can diverge on batches of 8.
        "pipeline": {"batch": 8, "retry": "300 ms", "patience": "60 s", "optimizer": {"lr": 1e-3, "momentum": 0.0}},
    }  # fmt: skip
    with within(LIMIT_S):
        result = potluck.lab(job, folder=tmp_path / "run", options=potluck.LabOptions(LIMIT_S))
    assert result.status == "done", result.reason
    left_out = instants(tmp_path / "run", "left out")
    assert {event.node for event in left_out} == {"d-1"}
    assert left_out[0].fields["reason"] == "hangs in a computation"
    assert [at.at for at in instants(tmp_path / "run", "committed") if at.at > left_out[0].at]
    assert "d-1" not in instants(tmp_path / "run", "partition")[-1].fields["order"]
