"""Statistics from data, for models that kept none while they trained."""

from __future__ import annotations

import torch
from torch import nn

from potluck.model.replica import Replica
from potluck.model.state import State
from potluck.model.submodels.calibration import calibrate
from potluck.model.submodels.width import width


def test_statistics_are_the_mean_over_the_batches_and_weights_stay() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(36, 2))
    found = width(module, (2, 3, 3))
    replica = Replica(module, found.layout, nn.functional.cross_entropy)
    weights = replica.numbers.params.clone()
    batches = [(torch.randn(8, 2, 3, 3) + 3, torch.zeros(8, dtype=torch.int64)) for _ in range(4)]
    calibrate(replica, batches)
    named = State(replica.numbers.params, replica.state_buffers()).named(found.layout)
    with torch.no_grad():
        outputs = [module[0](inputs) for inputs, _ in batches]
    means = torch.stack([output.mean((0, 2, 3)) for output in outputs]).mean(0)
    spreads = torch.stack([output.var((0, 2, 3)) for output in outputs]).mean(0)
    assert torch.allclose(named["1.running_mean"], means, atol=1e-5)
    assert torch.allclose(named["1.running_var"], spreads, atol=1e-5)
    assert torch.equal(replica.numbers.params, weights)
    assert replica.module[1].momentum == 0.1  # type: ignore[index]
    assert not replica.module.training
