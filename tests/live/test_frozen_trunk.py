"""A device that builds other frozen weights than the coordinator fetches them once, in both loops."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import potluck
from potluck.data import load
from potluck.job import make
from potluck.journal import Instant, Span, read_journal
from potluck.task import TaskSettings
from tests.live.live_scenarios import LEASE, RunControl, run_live, small_job

FROZEN_BYTES = 4 * (64 * 16 + 16)
TASK = {"model": f"{__name__}:build_net", "data": {"kind": "synthetic", "shape": [64], "train": 64, "test": 10}}
PIPELINE: dict[str, Any] = {
    "recipe": "gpipe",
    "pipeline": {"batch": 16, "schedule": {"kind": "gpipe", "micro_batches": 1}, "patience": "60 s"},
}


def build_net() -> nn.Module:
    """Every process initialises the frozen trunk in its own way."""
    head = nn.Linear(16, 10)
    torch.manual_seed(os.getpid())
    trunk = nn.Linear(64, 16).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), trunk, nn.ReLU(), head)


@pytest.mark.parametrize("settings", [{"recipe": "fedavg"}, PIPELINE], ids=["rounds", "pipeline"])
def test_devices_with_another_trunk_train_with_the_coordinators(tmp_path: Path, settings: dict[str, Any]) -> None:
    job: dict[str, Any] = {**settings, "task": TASK, "checkpoint": 0, "stop": {"rounds": 3}}
    live = run_live(tmp_path / "live", **job)
    assert live.status == "done", live.reason
    trained = load_file(tmp_path / "live/model.safetensors")
    spans = [record for record in read_journal(tmp_path / "live/journal.jsonl") if isinstance(record, Span)]
    sent = [span.fields["bytes"] for span in spans if "frozen" in span.fields]
    assert sent == [FROZEN_BYTES] * (1 if "pipeline" in settings else 4)

    named = make(small_job(**job)).task
    assert isinstance(named, TaskSettings)
    data = load(named.data, None)
    whole = potluck.Task(named.model_factory((64,), 10), data)
    module = whole.build_module(make(small_job(**job)).seed)
    with torch.no_grad():
        module.load_state_dict({**module.state_dict(), "1.weight": trained["1.weight"], "1.bias": trained["1.bias"]})
    potluck.simulate(small_job(**job), task=potluck.Task(module, data), folder=tmp_path / "simulated")
    simulated = load_file(tmp_path / "simulated/model.safetensors")
    assert all(torch.equal(trained[name], simulated[name]) for name in trained)


@pytest.mark.wall_clock
def test_a_process_that_rejoins_does_not_fetch_again(tmp_path: Path) -> None:
    async def scenario(control: RunControl) -> None:
        while control.progress.round < 2:
            await control.node.sleep(0.05)
        control.signal("d-1", signal.SIGSTOP)
        try:
            await control.node.sleep(2 * LEASE)
        finally:
            control.signal("d-1", signal.SIGCONT)

    rounds = {"least": 4, "patience": "90 s", "local": {"kind": "sgd", "lr": 0.05, "epochs": 20}}
    fleet = {"devices": [{"name": "d", "count": 4, "flops": "2 MFLOP/s"}], "lease": LEASE}
    job: dict[str, Any] = {"task": TASK, "rounds": rounds, "fleet": fleet, "stop": {"rounds": 8}}
    live = run_live(tmp_path, scenario, emulate_fleet=True, **job)
    assert live.status == "done", live.reason
    records = list(read_journal(tmp_path / "journal.jsonl"))
    assert any(isinstance(record, Instant) and (record.node, record.name) == ("d-1", "lost") for record in records)
    fetched = [record.node for record in records if isinstance(record, Span) and "frozen" in record.fields]
    assert sorted(fetched) == ["d-0", "d-1", "d-2", "d-3"]
