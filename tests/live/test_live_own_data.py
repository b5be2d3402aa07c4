"""Nested inputs from a data set that is read lazily: a live run ends with the weights of the simulated one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import potluck
from potluck.data import from_torch
from tests.live.live_scenarios import LEASE, LIMIT_S, differing_tensors
from tests.time_limits import within

LOOPS: dict[str, dict[str, Any]] = {
    "rounds": {"recipe": "fedavg", "rounds": {"patience": "60 s"}},
    "stages": {
        "recipe": "ftpipehd",
        "pipeline": {
            "batch": 8,
            "patience": "60 s",
            "partition": {"kind": "cuts", "after": [1]},
            "adaptation": {"every": 0, "on_change": False, "join": False},
        },
    },
}


class NoisyTexts(Dataset[dict[str, Tensor]]):
    """Tokens and a number; noise is drawn at every read."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (torch.arange(6) * (index + 1)) % 11
        return {"tokens": tokens, "number": torch.rand(1), "label": torch.tensor(index % 3)}


class TextAndNumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.hidden = nn.Sequential(nn.Linear(9, 8), nn.Tanh())
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor, number: Tensor) -> Tensor:
        output: Tensor = self.head(self.hidden(torch.cat([self.words(tokens).mean(1), number], dim=1)))
        return output


@pytest.mark.parametrize("loop", LOOPS)
def test_a_live_run_on_lazily_read_dicts_equals_the_simulated_one(loop: str, tmp_path: Path) -> None:
    task = potluck.Task(TextAndNumber, from_torch(NoisyTexts(), NoisyTexts()))
    job = {
        "task": "own",
        "fleet": {"devices": [{"name": "d", "count": 2, "flops": "20 MFLOP/s"}], "lease": LEASE},
        "stop": {"rounds": 4},
        **LOOPS[loop],
    }
    with within(LIMIT_S):
        options = potluck.LabOptions(LIMIT_S, emulate_fleet=False)
        live = potluck.lab(job, folder=tmp_path / "live", task=task, options=options)
    assert live.status == "done", live.reason
    simulated = potluck.simulate(job, folder=tmp_path / "simulated", task=task, threads=0)
    assert simulated.summary["samples"] == live.summary["samples"] > 0
    assert differing_tensors(tmp_path / "live", tmp_path / "simulated") == []
    initial = task.build_module(0).state_dict()
    assert live.module is not None
    assert not torch.equal(live.module.state_dict()["head.weight"], initial["head.weight"])
