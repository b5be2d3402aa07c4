"""The generated digits are reproducible, standardised, and learnable but not trivial."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from potluck.data import load
from potluck.errors import UserError


def test_the_same_options_give_the_same_samples() -> None:
    data, repeated, other = load("drawn-digits"), load("drawn-digits"), load("drawn-digits:seed=1")
    assert (len(data.train), len(data.test), data.shape) == (2000, 500, (1, 8, 8))
    assert torch.equal(data.train.x, repeated.train.x)
    assert torch.equal(data.test.y, repeated.test.y)
    assert not torch.equal(data.train.x, other.train.x)
    assert set(np.bincount(data.test.labels)) == {50}


def test_inputs_are_standardised() -> None:
    data = load("drawn-digits:train=5000")
    inputs, _ = data.train.batch(np.arange(len(data.train)))
    assert inputs.mean().abs() < 0.02
    assert abs(float(inputs.std()) - 1) < 0.02


def test_train_and_test_samples_differ() -> None:
    data = load("drawn-digits")
    train_samples = {row.numpy().tobytes() for row in data.train.x}
    assert all(row.numpy().tobytes() not in train_samples for row in data.test.x)


def test_a_linear_classifier_learns_them_but_not_perfectly() -> None:
    data = load("drawn-digits")
    inputs, targets = data.train.batch(np.arange(len(data.train)))
    test_inputs, test_targets = data.test.batch(np.arange(len(data.test)))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    accuracy = float((model(test_inputs).argmax(1) == test_targets).float().mean())
    assert 0.85 < accuracy < 0.99


@pytest.mark.parametrize("name", ["drawn-digits:train=0", "drawn-digits:noise=-1", "drawn-digits:size=3"])
def test_wrong_options_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"train|noise|size"):
        load(name)
