"""A device's memory is honoured by every recipe: what does not fit is refused before the run, with what would."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import potluck
from potluck.errors import UserError

WIDTH, HIDDEN, CLASSES, SAMPLES = 10, 64, 5, 40
PARAMETERS = WIDTH * HIDDEN + HIDDEN + HIDDEN * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES
ACTIVATIONS = WIDTH + HIDDEN + HIDDEN + HIDDEN + HIDDEN + CLASSES  # the input, two layers with their ReLU, the output


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
    )


def task() -> potluck.Task:
    return potluck.Task(build_model, (torch.randn(SAMPLES, WIDTH), torch.arange(SAMPLES) % CLASSES))


def job(recipe: str, memory: str | int, **settings: Any) -> dict[str, Any]:
    devices = [{"name": "large", "flops": "1 GFLOP/s"}, {"name": "small", "flops": "1 GFLOP/s", "memory": memory}]
    return {"recipe": recipe, "task": "own", "fleet": {"devices": devices}, "stop": {"rounds": 1}, **settings}


def batches_of(size: int, **local: Any) -> dict[str, Any]:
    return {"rounds": {"batching": {"kind": "fixed", "size": size}, **({"local": local} if local else {})}}


@pytest.mark.parametrize(
    ("local", "vectors"),
    [({"kind": "sgd"}, 3), ({"kind": "sgd", "momentum": 0.9}, 4), ({"kind": "adamw"}, 5), ({"kind": "gradient"}, 3)],
)
def test_the_plan_shows_vectors_and_activations(local: dict[str, Any], vectors: int) -> None:
    forecast = potluck.plan(job("fedavg", "1 GB", **batches_of(8, **local)), task=task()).rounds[0]
    assert forecast.memory_bytes == 4 * (vectors * PARAMETERS + 8 * ACTIVATIONS)


def test_exactly_enough_is_enough_and_a_byte_less_is_refused_with_the_batch_that_fits() -> None:
    needed = 4 * (3 * PARAMETERS + 8 * ACTIVATIONS)
    assert potluck.simulate(job("fedavg", needed, **batches_of(8)), task=task(), threads=0).status == "done"
    with pytest.raises(UserError, match=r"fleet\.devices\[1\]\.memory: small has .* a batch of at most 7 fits"):
        potluck.simulate(job("fedavg", needed - 1, **batches_of(8)), task=task())
    assert potluck.simulate(job("fedavg", needed - 1, **batches_of(7)), task=task(), threads=0).status == "done"


STREAM = {"stream": {"rate": {"kind": "constant", "per_second": 20.0}}}


@pytest.mark.parametrize("recipe", ["fedavg", "sync-sgd", "dynacomm", "duplex", "fedbuff", "distreal", "scadles"])
def test_a_device_that_cannot_hold_the_whole_model_is_refused_by_recipes_that_send_it(recipe: str) -> None:
    settings = STREAM if recipe == "scadles" else {}
    for timing_only in (False, True):
        with pytest.raises(UserError, match="use a recipe with sub-models, such as heterofl, or a pipeline") as error:
            potluck.simulate(job(recipe, "20 kB", timing_only=timing_only, **settings), task=task())
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("recipe", ["heterofl", "fjord", "fedrolex", "federated-dropout"])
def test_a_device_with_little_memory_gets_a_smaller_sub_model(recipe: str) -> None:
    result = potluck.simulate(job(recipe, "30 kB", **batches_of(4)), task=task(), threads=0)
    assert result.status == "done"
    large, small = potluck.plan(job(recipe, "30 kB", **batches_of(4)), task=task()).rounds
    assert large.devices == ("large",)
    assert small.memory_bytes <= 30e3 < large.memory_bytes


def test_what_is_too_small_for_any_sub_model_is_refused() -> None:
    with pytest.raises(UserError, match=r"training its sub-model .* smaller"):
        potluck.simulate(job("heterofl", "400 B"), task=task())


def test_a_pipeline_gives_a_small_device_what_fits_and_shows_it() -> None:
    forecast = potluck.plan(job("ftpipehd", "30 kB", pipeline={"batch": 8}), task=task()).pipeline
    assert forecast is not None
    for stage in forecast.stages():
        assert 0 < stage["memory_bytes"] <= (30e3 if stage["device"] == "small" else 4 * 2**30)


def test_the_sizes_in_a_refusal_are_short() -> None:
    with pytest.raises(UserError) as error:
        potluck.simulate(job("fedavg", "33.333333 kB"), task=task())
    assert re.findall(r"[0-9.]+ [kM]?B", str(error.value))[0] == "33.3 kB"
