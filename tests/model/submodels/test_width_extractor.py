"""Batch-norm statistics computed from data, for models that kept none during training."""

from __future__ import annotations

import torch
from torch import nn

from potluck.model.model_replica import ModelReplica
from potluck.model.model_state import ModelState
from potluck.model.submodels.slimmable_model import trace_slimmable
from potluck.model.submodels.width_extractor import calibrate_norms


def test_statistics_are_the_mean_over_the_batches_and_weights_stay() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(36, 2))
    slimmable = trace_slimmable(module, (2, 3, 3))
    replica = ModelReplica(module, slimmable.layout, nn.functional.cross_entropy)
    weights = replica.state.params.clone()
    batches = [(torch.randn(8, 2, 3, 3) + 3, torch.zeros(8, dtype=torch.int64)) for _ in range(4)]
    calibrate_norms(replica, batches)
    tensors = ModelState(replica.state.params, replica.copy_buffers()).named_tensors(slimmable.layout)
    with torch.no_grad():
        outputs = [module[0](inputs) for inputs, _ in batches]
    means = torch.stack([output.mean((0, 2, 3)) for output in outputs]).mean(0)
    spreads = torch.stack([output.var((0, 2, 3)) for output in outputs]).mean(0)
    assert torch.allclose(tensors["1.running_mean"], means, atol=1e-5)
    assert torch.allclose(tensors["1.running_var"], spreads, atol=1e-5)
    assert torch.equal(replica.state.params, weights)
    assert replica.module[1].momentum == 0.1  # type: ignore[index]
    assert not replica.module.training
