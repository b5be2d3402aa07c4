"""Packs, checks and mixes in the samples that one device's stream gives to another's batch (data injection)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from potluck.data.samples import Indices, Samples
from potluck.data.streams.live_feed import SampleStore
from potluck.data.streams.stream_feed import IndexedSamples

__all__ = ["MixedSamples", "pack_samples", "refusal_reason"]


def pack_samples(samples: IndexedSamples, ids: Indices) -> tuple[Any, Any]:
    """Return the inputs as stored and their labels, as they go on the wire."""
    if isinstance(samples, SampleStore):
        picked = [samples[number] for number in ids.tolist()]
        return np.stack([sample.x for sample in picked]), np.array([sample.y for sample in picked], np.int64)
    assert isinstance(samples, Samples)
    chosen = torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64))
    return samples.x.index_select(0, chosen).numpy(), samples.y.index_select(0, chosen).numpy()


def refusal_reason(arrays: Sequence[Any], shape: tuple[int, ...], classes: int) -> str | None:
    """Why these arrays are not samples of this shape with `classes` labels (0: unknown); None if they are."""
    if len(arrays) != 2 or not all(isinstance(array, np.ndarray) for array in arrays):
        return "it does not consist of inputs and labels"
    x, y = arrays
    fits = x.ndim > 0 and x.shape[1:] == shape and y.shape == x.shape[:1]
    if not fits or y.dtype != np.int64 or x.dtype not in (np.uint8, np.float32):
        return f"inputs {x.dtype} {x.shape} and labels {y.dtype} {y.shape} do not fit samples of shape {shape}"
    if x.dtype == np.float32 and not np.isfinite(x).all():
        return "its inputs are not all finite"
    if classes and len(y) and not 0 <= y.min() <= y.max() < classes:
        return f"its labels go from {y.min()} to {y.max()}, of {classes} classes"
    return None


class MixedSamples:
    """A device's own samples by id, and received ones by the ids −1, −2, …"""

    def __init__(self, own: IndexedSamples, gifts: Sequence[tuple[Any, Any]]) -> None:
        self._own = own
        self.needs_rng = own.needs_rng
        x = torch.from_numpy(np.concatenate([gift[0] for gift in gifts]))
        y = torch.from_numpy(np.concatenate([gift[1] for gift in gifts]))
        assert isinstance(own, Samples | SampleStore)
        scaling, augmentation = own.scaling, own.augmentation
        self._received = Samples(x, y, scaling=scaling, augmentation=augmentation)

    def __len__(self) -> int:
        return len(self._own) + len(self._received)

    @property
    def received_ids(self) -> Indices:
        """The ids of the received samples."""
        return -1 - np.arange(len(self._received), dtype=np.int64)

    def batch(self, indices: Indices, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        own, received = indices[indices >= 0], -1 - indices[indices < 0]
        batches = [
            samples.batch(chosen, rng)
            for samples, chosen in ((self._own, own), (self._received, received))
            if len(chosen)
        ]
        return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
