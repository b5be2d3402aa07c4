"""Keeps the outputs of a frozen trunk by sample, so that each is computed once instead of in every pass."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from potluck.model.indexed_dataset import IndexedDataset, Indices

__all__ = ["FeatureCache", "feature_bytes"]


class FeatureCache:
    """The trunk's outputs of the samples that were asked for so far; devices in one process share them.

    Memory is reserved for all samples, but only what is written takes any.
    """

    def __init__(self, trunk: nn.Module) -> None:
        self._trunk = trunk
        self._writing = threading.Lock()
        self._features = torch.empty(0)
        self._targets: Any = None
        self._known = np.zeros(0, bool)
        self.computed = 0  # samples that went through the trunk

    def __deepcopy__(self, memo: dict[int, Any]) -> FeatureCache:
        """Copies of a network share it."""
        return self

    def batch(self, samples: IndexedDataset, indices: Indices) -> tuple[Tensor, Tensor]:
        """The features and targets of these samples, which are not transformed at random."""
        with self._writing:
            missing = np.unique(indices if not len(self._known) else indices[~self._known[indices]])
            if len(missing):
                self._compute_features(samples, missing)
        rows = torch.from_numpy(indices)
        return self._features[rows], self._targets[rows]

    @torch.no_grad()
    def _compute_features(self, samples: IndexedDataset, indices: Indices) -> None:
        inputs, targets = samples.batch(indices)
        features = self._trunk.eval()(inputs)
        if not len(self._known):
            self._known = np.zeros(len(samples), bool)
            self._features = torch.empty(len(samples), *features.shape[1:], dtype=features.dtype)
            self._targets = torch.empty(len(samples), *targets.shape[1:], dtype=targets.dtype)
        rows = torch.from_numpy(indices)
        self._features[rows], self._targets[rows] = features, targets
        self._known[indices] = True
        self.computed += len(indices)


@torch.no_grad()
def feature_bytes(trunk: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Bytes of a trunk's output for one sample of this shape."""
    device = next((parameter.device for parameter in trunk.parameters()), torch.device("cpu"))
    features: Tensor = trunk.eval()(torch.zeros(1, *shape, dtype=dtype, device=device))
    return features.nbytes
