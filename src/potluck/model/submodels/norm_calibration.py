"""Recomputes batch-norm statistics of a model whose training kept none, or kept those of sub-models.

HeteroFL trains without running statistics (static batch norm) and computes them from data before the model is used.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from potluck.model.model_replica import ModelReplica

__all__ = ["calibrate_norms"]


@torch.no_grad()
def calibrate_norms(replica: ModelReplica, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Set every running statistic to its mean over these batches; nothing else changes."""
    replica.module.eval()
    norms = [layer for layer in replica.module.modules() if isinstance(layer, _NormBase) and layer.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
        norm.momentum = None  # a plain mean over all batches
    for inputs, _ in batches:
        replica.module(inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    replica.module.eval()
