"""The moving average of a model over rounds is what a run evaluates, keeps as best, saves and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import potluck
from potluck.model.model_average import ModelAverage
from potluck.model.model_state import ModelState


def state(value: float) -> ModelState:
    return ModelState(torch.full((3,), value), torch.full((2,), 10 * value))


def test_recent_versions_count_more_and_the_initial_weights_are_forgotten() -> None:
    average, expected = ModelAverage(0.5, state(0.0)), 0.0
    for number, value in enumerate((1.0, 4.0, -2.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0), start=1):
        average.add_version(state(value))
        decay = min(0.5, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * value
        assert torch.allclose(average.state.params, torch.full((3,), expected))
        assert torch.allclose(average.state.buffers, torch.full((2,), 10 * expected))
    assert abs(expected - 8.0) < 0.2


def test_constant_versions_are_their_own_average() -> None:
    average = ModelAverage(0.99, state(0.3))
    for _ in range(20):
        average.add_version(state(0.3))
    assert torch.equal(average.state.params, state(0.3).params)


JOB: dict[str, Any] = {
    "recipe": "fedavg",
    "task": {
        "model": "mlp",
        "options": {"hidden": [16]},
        "data": {"kind": "synthetic", "shape": [1, 4, 4], "train": 120, "test": 40},
    },
    "fleet": "kitchen-table",
    "split": {"kind": "shards"},
    "checkpoint": 2,
    "stop": {"rounds": 6},
}


def averaged(decay: float, **job: Any) -> dict[str, Any]:
    return {**JOB, "rounds": {"average_decay": decay}, **job}


def weights(result: potluck.Result) -> list[torch.Tensor]:
    assert result.module is not None
    return list(result.module.parameters())


def test_devices_train_the_newest_version_and_the_average_is_evaluated(tmp_path: Path) -> None:
    plain = potluck.simulate(averaged(0.0), folder=tmp_path / "plain", threads=0)
    mean = potluck.simulate(averaged(0.8), folder=tmp_path / "mean", threads=0)
    assert plain.metrics["loss"] == mean.metrics["loss"]  # on the samples that devices train on
    assert plain.metrics["test_loss"] != mean.metrics["test_loss"]
    assert not all(map(torch.equal, weights(plain), weights(mean)))


def test_a_resumed_average_is_that_of_an_unbroken_run(tmp_path: Path) -> None:
    whole = potluck.simulate(averaged(0.8), folder=tmp_path / "whole", threads=0)
    potluck.simulate(averaged(0.8, stop={"rounds": 4}), folder=tmp_path / "cut", threads=0)
    resumed = potluck.resume(tmp_path / "cut", overrides=["stop.rounds=6"], threads=0)
    assert all(map(torch.equal, weights(whole), weights(resumed)))
