"""Packs and mixes in the samples that one device's stream gives to another's batch (data injection)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from potluck.data.samples import PLAIN, Indices, Samples
from potluck.data.streams.stream_feed import IndexedSamples
from potluck.data.streams.stream_records import SampleSpec

__all__ = ["MixedSamples", "pack_samples"]


def pack_samples(samples: IndexedSamples, ids: Indices) -> tuple[Any, ...]:
    """Return the arrays of the inputs and the targets as stored, as they go on the wire."""
    return tuple(leaf.numpy() for tree in samples.stored_batch(ids) for leaf in tree_leaves(tree))


class MixedSamples:
    """A device's own samples by id, and received ones by the ids −1, −2, …"""

    def __init__(self, own: IndexedSamples, gifts: Sequence[Sequence[Any]], spec: SampleSpec) -> None:
        self._own = own
        self.needs_rng = own.needs_rng
        arrays = [torch.from_numpy(np.concatenate(leaves)) for leaves in zip(*gifts, strict=True)]
        x, y = spec.unflatten(arrays)
        scaling, augmentation = getattr(own, "scaling", PLAIN), getattr(own, "augmentation", None)
        self._received = Samples(x, y, scaling=scaling, augmentation=augmentation, dtype=own.dtype)

    def __len__(self) -> int:
        return len(self._own) + len(self._received)

    @property
    def received_ids(self) -> Indices:
        """The ids of the received samples."""
        return -1 - np.arange(len(self._received), dtype=np.int64)

    def batch(self, indices: Indices, rng: np.random.Generator | None = None) -> tuple[Any, Any]:
        own, received = indices[indices >= 0], -1 - indices[indices < 0]
        batches = [
            samples.batch(chosen, rng)
            for samples, chosen in ((self._own, own), (self._received, received))
            if len(chosen)
        ]
        if len(batches) == 1:
            return batches[0]
        mixed: tuple[Any, Any] = tree_map(lambda *leaves: torch.cat(leaves), *batches)
        return mixed
