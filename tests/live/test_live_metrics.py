"""Metrics of live runs: those of rounds and of stages equal the simulated ones and a plain evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import potluck
from potluck.job import make
from potluck.model.evaluation_score import EvaluationScore
from potluck.model.metrics import resolve_metrics
from potluck.model.weights_file import load_weights
from potluck.task import build_task
from tests.live.live_scenarios import LEASE

METRICS = ["f1", "accuracy", "perplexity"]
LOOPS: dict[str, dict[str, Any]] = {
    "rounds": {
        "recipe": "fedavg",
        "rounds": {"patience": "60 s", "local_schedule": {"kind": "plateau", "patience": 0}},
    },
    "stages": {
        "recipe": "ftpipehd",
        "pipeline": {
            "evaluation": "pipeline",
            "patience": "60 s",
            "lr_schedule": {"kind": "plateau", "metric": "f1", "patience": 0, "threshold": 0.2},
            "partition": {"kind": "cuts", "after": [0]},
            "adaptation": {"every": 0, "on_change": False, "join": False},
        },
    },
}


@pytest.mark.parametrize("loop", LOOPS)
def test_live_metrics_equal_simulated_ones_and_a_plain_evaluation(loop: str, tmp_path: Path) -> None:
    data = {"kind": "synthetic", "train": 200, "test": 300}
    tables = {
        "task": {"model": "mlp", "data": data, "options": {"hidden": [16]}, "metrics": METRICS},
        "fleet": {"devices": [{"name": "d", "count": 2, "flops": "20 MFLOP/s"}], "lease": LEASE},
        "stop": {"rounds": 6},
        "evaluate": 2,
        **LOOPS[loop],
    }
    live = potluck.lab(tables, folder=tmp_path / "live", options=potluck.LabOptions(emulate_fleet=False))
    assert live.status == "done", live.reason
    simulated = potluck.simulate(tables, threads=0)
    assert live.summary["metrics"] == pytest.approx(simulated.summary["metrics"], rel=1e-4)
    assert live.metrics["test_f1"][::2] == pytest.approx(simulated.metrics["test_f1"][::2], rel=1e-4)

    task = build_task(make(tables).task, None)
    for name, expected in (("model", live.summary["metrics"]), ("best", {"f1": live.summary["best"]["value"]})):
        module = task.build_module(0).eval()
        load_weights(module, tmp_path / "live" / f"{name}.safetensors")
        score = EvaluationScore(task.loss, resolve_metrics(METRICS))
        with torch.no_grad():
            inputs, targets = task.data.test.batch(np.arange(300))
            score.add_batch(module(inputs), targets)
        measured = score.as_metrics()
        assert {key: measured[key] for key in expected} == pytest.approx(expected, rel=1e-4)
