"""A run computes what a plain training loop computes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import potluck
from potluck import seeds
from potluck.data import Dataset, from_tensors
from potluck.job import make
from potluck.journal import read_journal
from potluck.loops.parts.batching import FixedBatching

ROUNDS = 7


pytestmark = pytest.mark.usefixtures("one_thread")


def small_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 36, 3)
    )  # fmt: skip


def small_data(samples: int = 90) -> Dataset:
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(samples, 1, 6, 6, generator=generator)
    labels = torch.randint(0, 3, (samples,), generator=generator)
    return from_tensors(images, labels, images[:30], labels[:30], name="small", classes=("a", "b", "c"))


def job(devices: int, **settings: Any) -> potluck.Job:
    tables: dict[str, Any] = {
        "task": "tests.simulation.test_equivalence:unused",
        "recipe": "sync-sgd",
        "fleet": {"devices": [{"preset": "pi4", "count": devices}]},
        "stop": {"rounds": ROUNDS},
        "rounds": {
            "batching": {"size": 15},
            "server": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
        },
    }
    return make({**tables, **settings})


def plain_loop(net: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    net.train()
    for inputs, targets in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def test_one_device_is_a_plain_pytorch_loop_bit_for_bit() -> None:
    torch.manual_seed(0)
    net, data = small_net(), small_data()
    expected = copy.deepcopy(net)
    shard = np.arange(len(data.train))
    batches = [
        data.train.batch(
            FixedBatching(size=15).choose_batches(
                shard, count, None, lambda *name: seeds.child_generator(0, "pi4", *name)
            )[0]
        )
        for count in range(ROUNDS)
    ]
    plain_loop(expected, batches)
    result = potluck.simulate(job(1), task=potluck.Task(net, data))
    assert result.module is not None
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, result.module.state_dict()[name]), name


def test_equal_shards_are_equivalent_to_one_big_batch() -> None:
    torch.manual_seed(1)
    net, data = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)).double(), small_data()
    data = from_tensors(
        data.train.x.double(), data.train.y, data.test.x.double(), data.test.y, name="small", classes=("a", "b", "c")
    )
    many = potluck.simulate(
        job(6, rounds={"batching": {"size": 15}}), task=potluck.Task(_DoubleInputs(copy.deepcopy(net)), data)
    )
    central = potluck.simulate(
        job(1, rounds={"batching": {"size": 90}}), task=potluck.Task(_DoubleInputs(copy.deepcopy(net)), data)
    )
    assert many.module is not None
    assert central.module is not None
    for actual, reference in zip(many.module.parameters(), central.module.parameters(), strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("recipe", ["sync-sgd", "fedavg"])
def test_the_result_does_not_depend_on_which_device_is_faster(recipe: str) -> None:
    """Other speeds and links give another order of arrival and the same model."""
    speeds = [(1, 2, 3, 4), (4, 1, 2, 3), (1, 1, 1, 1)]
    rates = [(9, 7, 5, 1), (1, 1, 8, 20), (5, 5, 5, 5)]
    fleets = [
        [
            {"name": f"d{index}", "flops": f"{flops} GFLOP/s", "link": {"up": f"{rate} Mbit/s"}}
            for index, (flops, rate) in enumerate(zip(*figures, strict=True))
        ]
        for figures in zip(speeds, rates, strict=True)
    ]
    models = []
    for devices in fleets:
        torch.manual_seed(2)
        result = potluck.simulate(
            job(1, fleet={"devices": devices}, recipe=recipe, rounds={"batching": {"size": 15}}),
            task=potluck.Task(small_net(), small_data()),
        )
        assert result.module is not None
        models.append(result.module.state_dict())
    for other in models[1:]:
        for name, tensor in models[0].items():
            torch.testing.assert_close(tensor, other[name], rtol=1e-5, atol=1e-6)


def test_a_run_that_diverges_fails_and_says_so(tmp_path: Path) -> None:
    """Updates that are not finite are refused; the journal stays readable, though JSON has no such numbers."""
    server = {"kind": "sgd", "lr": 1e30}
    result = potluck.simulate(
        job(2, rounds={"batching": {"size": 15}, "server": server, "norm_bound": 0}),
        task=potluck.Task(small_net(), small_data()),
        folder=tmp_path / "run",
    )
    assert result.status == "failed"
    assert "not all finite" in result.reason
    assert result.summary["refused"] > 0
    assert list(read_journal(tmp_path / "run" / "journal.jsonl"))


def test_the_norm_bound_scales_the_updates_of_a_step_that_is_far_too_long() -> None:
    job_of_long_steps = job(2, rounds={"batching": {"size": 15}, "server": {"kind": "sgd", "lr": 1e30}})
    result = potluck.simulate(job_of_long_steps, task=potluck.Task(small_net(), small_data()))
    assert result.status == "done"
    assert result.summary["clipped"] > 0, "it is said"


class _DoubleInputs(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.net(inputs.double())
        return result
