"""Updates of different sub-models become one: the mean of every entry over those who trained it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from potluck.model.optimizers import Adam, Optimizer, Sgd
from potluck.model.submodels.merging import EntrySum, untouched
from potluck.model.submodels.subsets import random, subsets
from potluck.model.submodels.width import Width, width

NETWORK: Width = width(nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.BatchNorm1d(7), nn.Linear(7, 2)), (3,))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0, 0.9)), min_size=1, max_size=5), st.integers(0, 99))
def test_mean_of_overlapping_sub_models_is_exact(updates: list[tuple[int, float]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    merged = EntrySum(NETWORK.layout)
    size = NETWORK.layout.param_bounds[-1]
    sums, weights = [Fraction(0)] * size, [0] * size
    for weight, rate in updates:
        selection = NETWORK.select(subsets(NETWORK, NETWORK.counts([rate]), random(rng)))
        update = torch.from_numpy(rng.integers(-1000, 1000, selection.params.size).astype(np.float32) / 64)
        merged.add(update, torch.zeros(selection.buffers.size), weight, selection)
        for place, value in zip(selection.params.index.tolist(), update.tolist(), strict=True):
            sums[place] += Fraction(value) * weight
            weights[place] += weight
    direction, change = merged.mean()
    for place in range(size):
        wanted = float(sums[place] / weights[place]) if weights[place] else 0.0
        assert direction[place].item() == np.float32(wanted)
    assert merged.covered.tolist() == [weight > 0 for weight in weights]
    assert float(change.abs().sum()) == 0.0


def test_one_update_comes_back_bit_for_bit_whatever_it_weighs() -> None:
    selection = NETWORK.select([np.array([1, 4])])
    update = torch.randn(selection.params.size, generator=torch.Generator().manual_seed(0))
    merged = EntrySum(NETWORK.layout)
    merged.add(update, torch.ones(selection.buffers.size), 0.3, selection)
    direction, change = merged.mean()
    assert torch.equal(direction[selection.params.index], update)
    assert int((change != 0).sum()) == selection.buffers.size


@pytest.mark.parametrize("settings", [Sgd(lr=0.1, momentum=0.9, weight_decay=0.1), Adam()])
def test_nobody_trained_it_so_neither_weight_nor_memory_moves(settings: Optimizer) -> None:
    params = torch.linspace(1, 2, 6)
    optimizer = settings.build(params)
    (param,) = optimizer.param_groups[0]["params"]
    covered = torch.tensor([True, True, False, True, False, False])
    history = []
    for everything in (True, False):
        now = torch.ones(6, dtype=torch.bool) if everything else covered
        param.grad = torch.where(now, torch.ones(6), torch.zeros(6))
        with untouched(optimizer, now):
            optimizer.step()
        memory = [value.clone() for value in optimizer.state[param].values() if value.shape == param.shape]
        history.append((param.detach().clone(), memory))
    (before, memory_before), (after, memory_after) = history
    assert torch.equal(after == before, ~covered)
    for one, other in zip(memory_before, memory_after, strict=True):
        assert torch.equal(one == other, ~covered)
