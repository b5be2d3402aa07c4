"""Every method on transformers, simulated: transfers, pipelines and sub-models of a tiny GPT and a text classifier."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import potluck
from potluck.data import from_tensors
from potluck.errors import UserError
from potluck.model import zoo
from potluck.model.losses import token_cross_entropy

TINY = {"vocabulary": 11, "block": 8, "depth": 2, "width": 16, "heads": 4}
LINK = {"up": "2 Mbit/s", "down": "2 Mbit/s", "latency": "2 ms", "overhead": "1 ms"}
DEVICES = [
    {"name": name, "flops": f"{speed} MFLOP/s", "link": LINK}
    for name, speed in (("slow", 4), ("middle", 10), ("fast", 20))
]
TRANSFERS = ("sync-sgd", "dynacomm", "duplex", "layer-by-layer", "ibatch", "mg-wfbp")
SUBMODELS = ("distreal", "heterofl", "fjord", "fedrolex", "federated-dropout")


def texts() -> Tensor:
    """Each token follows from the one before it."""
    tokens = [torch.arange(66) % 11]
    for _ in range(8):
        tokens.append((tokens[-1] * 3 + 1) % 11)
    return torch.stack(tokens, 1)


def gpt(**options: object) -> potluck.Task:
    data = from_tensors(texts()[:, :-1], texts()[:, 1:], test_fraction=0.25)
    return potluck.Task(
        lambda: zoo.build_model("gpt", **{**TINY, **options}),  # type: ignore[arg-type]
        data,
        loss=token_cross_entropy,
    )


def text_encoder() -> potluck.Task:
    data = from_tensors(texts()[:, :-1], texts()[:, 0] % 3, test_fraction=0.25)
    return potluck.Task(lambda: zoo.build_model("text-encoder", classes=3, **TINY), data)


def simulate(recipe: str, task: potluck.Task, stop: int = 2, **tables: Any) -> tuple[float, Tensor]:
    """The loss, and all weights as one vector."""
    job = {"recipe": recipe, "task": "own", "fleet": {"devices": DEVICES}, "split": "iid", "stop": {"rounds": stop}}
    if "pipeline" in tables:
        del job["split"]
    result = potluck.simulate({**job, **tables}, task=task)
    assert result.module is not None
    return result.summary["loss"], torch.nn.utils.parameters_to_vector(result.module.parameters()).detach()


def plan_stages(recipe: str, task: potluck.Task, pipeline: dict[str, Any]) -> list[list[int]]:
    """The first and the last layer of each stage."""
    tables = {"fleet": {"devices": DEVICES}, "stop": {"rounds": 1}, "pipeline": pipeline}
    planned = potluck.plan({"recipe": recipe, "task": "own", **tables}, task=task).to_dict()
    return [stage["layers"] for stage in planned["stages"]]


def test_how_transfers_are_cut_does_not_change_a_tied_gpt() -> None:
    weights = [simulate(recipe, gpt())[1] for recipe in TRANSFERS]
    assert all(torch.equal(weights[0], others) for others in weights[1:])


@pytest.mark.parametrize("tie", [True, False])
def test_a_pipeline_over_blocks_equals_the_whole_model(tie: bool) -> None:
    one_batch = {"batch": 12, "schedule": {"kind": "gpipe", "micro_batches": 1}}
    whole = simulate("single", gpt(tie=tie), pipeline={"batch": 12})[1]
    assert len(plan_stages("gpipe", gpt(tie=tie), one_batch)) == 3
    assert torch.equal(simulate("gpipe", gpt(tie=tie), pipeline=one_batch)[1], whole)


def test_a_pipeline_between_blocks_is_cut_before_a_block() -> None:
    stages = plan_stages("ftpipehd", gpt(depth=3), {"batch": 12, "between": "blocks"})
    begins = {0, 1, 2, 6, 10, 14}  # token, position, three blocks of four layers, head
    assert len(stages) > 1
    assert {first for first, _ in stages} <= begins


def test_ftpipehd_spreads_the_blocks_and_trains_both_models() -> None:
    for task in (gpt(), text_encoder()):
        assert len(plan_stages("ftpipehd", task, {"batch": 12})) > 1
        first = simulate("ftpipehd", task, stop=1, pipeline={"batch": 12})[0]
        assert simulate("ftpipehd", task, stop=8, pipeline={"batch": 12})[0] < first


@cache
def fedavg_weights(depth: int) -> Tensor:
    return simulate("fedavg", gpt(depth=depth))[1]


@pytest.mark.parametrize("recipe", SUBMODELS)
def test_weak_devices_train_heads_and_feed_forward_units_of_a_gpt(recipe: str) -> None:
    before = token_cross_entropy(gpt(depth=1).build_module(0)(texts()[:, :-1]), texts()[:, 1:])
    last, weights = simulate(recipe, gpt(depth=1))
    assert last < before
    assert not torch.equal(weights, fedavg_weights(1))  # something was dropped


def test_weak_devices_train_a_part_of_a_text_classifier() -> None:
    assert simulate("distreal", text_encoder(), stop=4)[0] < simulate("distreal", text_encoder(), stop=1)[0]


@pytest.mark.parametrize("kind", ["heterofl", "fjord", "fedrolex", "federated-dropout"])
def test_at_full_width_sub_models_train_exactly_as_fedavg(kind: str) -> None:
    rounds = {"submodel": {"kind": kind, "levels": [1.0]}}
    assert torch.equal(simulate(kind, gpt(depth=1), rounds=rounds)[1], fedavg_weights(1))


@pytest.mark.parametrize("build", [gpt, text_encoder])
def test_class_groups_refuse_tokens_before_a_run(build: Any) -> None:
    with pytest.raises(UserError, match=r"class groups \(recipe 'decoupled'\) need .* takes tokens; recipes") as error:
        simulate("decoupled", build())
    assert "\n" not in str(error.value)


def test_a_model_without_anything_to_drop_is_refused_before_a_run() -> None:
    data = from_tensors(torch.randn(24, 4), torch.arange(24) % 2)
    task = potluck.Task(torch.nn.Linear(4, 2), data)
    with pytest.raises(UserError, match=r"rounds.submodel: Linear has no channels, .* train the whole model"):
        simulate("heterofl", task)


def test_a_model_that_cannot_be_cut_is_named_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    class Branching(torch.nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) if input.sum() > 0 else super().forward(-input)

    task = potluck.Task(
        torch.nn.Sequential(Branching(4, 4), Branching(4, 2)), from_tensors(torch.randn(24, 4), torch.arange(24) % 2)
    )
    simulate("gpipe", task, stop=1, pipeline={"batch": 8})
    assert "one device trains the whole model, which cannot be cut into stages: it could not be traced" in caplog.text
