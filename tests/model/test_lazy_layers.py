"""Lazy layers get the same weights wherever they are built, and train as if they had never been lazy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import potluck
from potluck.errors import ModelError
from potluck.model.lazy_layers import has_lazy_layers, initialise_lazy_layers
from tests.simulation.strange_models import lazy_conv, lazy_mlp

DATA = (torch.randn(24, 6, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 3)
JOB = {"recipe": "fedavg", "task": "own", "fleet": "kitchen-table", "stop": {"rounds": 1}}


def weights(module: nn.Module) -> list[torch.Tensor]:
    return list(module.state_dict().values())


def test_the_weights_follow_the_seed_and_nothing_else() -> None:
    task = potluck.Task(lazy_mlp, DATA)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = task.build_module(3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12)
    assert all(map(torch.equal, weights(first), weights(task.build_module(3))))
    assert not all(map(torch.equal, weights(first), weights(task.build_module(4))))


def test_modes_and_statistics_are_left_alone() -> None:
    model = lazy_conv()
    model[1].eval()
    initialise_lazy_layers(model, torch.randn(2, 1, 6, 6), 0)
    assert not has_lazy_layers(model)
    assert model.training
    assert not model[1].training
    assert model[1].get_buffer("num_batches_tracked") == 0


def test_a_lazy_model_trains_like_the_same_model_that_was_never_lazy() -> None:
    lazy = potluck.simulate(JOB, task=potluck.Task(lazy_mlp, DATA), threads=0)
    plain = potluck.Task(lazy_mlp, DATA).build_module(0)
    eager = potluck.simulate(JOB, task=potluck.Task(plain, DATA), threads=0)
    assert lazy.module is not None
    assert eager.module is not None
    assert all(map(torch.equal, weights(lazy.module), weights(eager.module)))


def test_a_plan_needs_no_run(tmp_path: Path) -> None:
    assert potluck.plan(JOB, task=potluck.Task(lazy_mlp, DATA)).rounds


def test_a_sample_that_does_not_fit_is_refused() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(5, 2))
    with pytest.raises(ModelError, match="does not fit the data"):
        initialise_lazy_layers(model, torch.randn(2, 3), 0)


def test_a_lazy_model_that_a_job_names_is_planned_without_its_data() -> None:
    named = {"model": "tests.simulation.strange_models:lazy_mlp", "data": {"kind": "synthetic", "shape": [6]}}
    (forecast,) = potluck.plan({**JOB, "task": named, "fleet": {"devices": [{"preset": "pi4"}]}}).rounds
    assert forecast.memory_bytes > 0
