"""`nn.Embedding(sparse=True)` trains as a plain loop does that makes its sparse gradients dense, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import potluck
from potluck import seeds
from potluck.data import from_tensors
from potluck.job import make
from potluck.loops.parts.batching import FixedBatching

ROUNDS, COUNT, BATCH = 3, 30, 10
ROUNDS_SETTINGS = {"batching": {"size": BATCH}, "server": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}}
PIPELINE = {"batch": BATCH, "schedule": {"kind": "gpipe", "micro_batches": 2}}

pytestmark = pytest.mark.usefixtures("one_thread")


class Words(nn.Module):
    """Tokens occur several times in a batch, so that sparse gradients have several rows for one of them."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, sparse=sparse)
        self.bag = nn.EmbeddingBag(11, 6, sparse=sparse)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(tokens).mean(1) + self.bag(tokens)))  # type: ignore[no-any-return]


def words(sparse: bool = True) -> Words:
    torch.manual_seed(3)
    return Words(sparse)


def texts() -> tuple[Tensor, Tensor]:
    return torch.randint(0, 11, (COUNT, 7), generator=torch.Generator().manual_seed(2)), torch.arange(COUNT) % 3


def trained(recipe: str, devices: int, sparse: bool) -> nn.Module:
    settings: dict[str, Any] = {"pipeline": PIPELINE} if recipe == "gpipe" else {"rounds": ROUNDS_SETTINGS}
    job = make({
        "task": "tests:unused", "recipe": recipe, "stop": {"rounds": ROUNDS}, "evaluate": 0,
        "fleet": {"devices": [{"name": "d", "count": devices, "flops": "20 MFLOP/s"}]}, **settings,
    })  # fmt: skip
    x, y = texts()
    result = potluck.simulate(job, task=potluck.Task(words(sparse), from_tensors(x, y, x, y)))
    assert result.status == "done", result.reason
    assert result.module is not None
    return result.module


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_one_device_is_a_plain_loop_with_dense_gradients() -> None:
    (x, y), expected = texts(), words()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9)
    for count in range(ROUNDS):
        chosen = FixedBatching(size=BATCH).choose_batches(
            np.arange(COUNT), count, None, lambda *name: seeds.child_generator(0, "d", *name)
        )[0]
        optimizer.zero_grad()
        F.cross_entropy(expected(x[chosen]), y[chosen]).backward()  # type: ignore[no-untyped-call]
        for parameter in expected.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad.to_dense()
        optimizer.step()
    assert_same_weights(trained("sync-sgd", 1, sparse=True), expected)


@pytest.mark.parametrize("recipe", ["fedavg", "dynacomm", "duplex", "gpipe"])
def test_sparse_and_dense_embeddings_train_alike(recipe: str) -> None:
    assert_same_weights(trained(recipe, 3, sparse=True), trained(recipe, 3, sparse=False))
