"""Fits the targets of token data to language models.

Two conventions are common. In one, target t is token t + 1 of the text, so the targets are *shifted* by one already. In
the other, that of Hugging Face, the `labels` are the input tokens themselves (-100 where none counts) and the model
shifts them. Potluck trains on the first; data of the second kind is shifted here, once, so that losses and metrics need
not know. Which kind a data set is can be seen from its samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from potluck.data.samples import PLAIN, Dataset, Samples, SampleSet
from potluck.errors import DataError

__all__ = ["IGNORED", "MappedSamples", "add_labels_to_inputs", "shift_targets", "token_alignment"]

IGNORED = -100
"""The target that losses leave out."""

LOOKED_AT = 64

Change = Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class MappedSamples:
    """Samples whose inputs and targets are changed batch by batch, when they are read."""

    samples: Any
    """The samples before the change, a SampleSet."""
    change: Change

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.samples.dtype
        return dtype

    @property
    def is_stream(self) -> bool:
        return bool(self.samples.is_stream)

    @property
    def owner(self) -> npt.NDArray[np.int64] | None:
        owner: npt.NDArray[np.int64] | None = self.samples.owner
        return owner

    @property
    def needs_rng(self) -> bool:
        return bool(self.samples.needs_rng)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        labels: npt.NDArray[np.int64] = self.samples.labels
        return labels

    @property
    def has_labels(self) -> bool:
        return bool(self.samples.has_labels)

    def batch(self, indices: npt.NDArray[np.integer], rng: np.random.Generator | None = None) -> tuple[Any, Any]:
        return self.change(*self.samples.batch(indices, rng))

    def stored_batch(self, indices: npt.NDArray[np.integer]) -> tuple[Any, Any]:
        return self.change(*self.samples.stored_batch(indices))

    def content_digest(self) -> str | None:
        """Of the samples before the change."""
        digest: str | None = self.samples.content_digest()
        return digest

    def with_dtype(self, dtype: torch.dtype) -> MappedSamples:
        return dataclasses.replace(self, samples=self.samples.with_dtype(dtype))


def token_alignment(data: Dataset) -> Literal["same", "shifted", "unknown"]:
    """Whether the targets are the input tokens themselves or already shifted by one, judged by the first samples."""
    inputs, targets = data.train.batch(np.arange(min(LOOKED_AT, len(data.train))))
    tokens = inputs.get("input_ids") if isinstance(inputs, dict) else inputs
    if not isinstance(tokens, Tensor) or not isinstance(targets, Tensor) or tokens.shape != targets.shape:
        raise DataError(f"{data.name}: a language model needs a target for each token, of the same shape as the tokens")
    counts = targets != IGNORED
    same = bool((targets == tokens)[counts].all())
    shifted = bool((targets[:, :-1] == tokens[:, 1:])[counts[:, :-1]].all())
    if same == shifted:
        return "unknown"
    return "same" if same else "shifted"


def shift_targets(data: Dataset) -> Dataset:
    """The same data with each target replaced by the next one; the last of a sample is ignored."""
    return _map_samples(data, _shift)


def add_labels_to_inputs(data: Dataset) -> Dataset:
    """The same data with the targets as an input `labels` too, for models that compute their own loss."""
    return _map_samples(data, _add_labels)


def _shift(inputs: Any, targets: Any) -> tuple[Any, Any]:
    return inputs, F.pad(targets[:, 1:], (0, 1), value=IGNORED)


def _add_labels(inputs: Any, targets: Any) -> tuple[Any, Any]:
    if isinstance(targets, dict):  # such as start_positions and end_positions
        return {**_named(inputs), **targets}, targets
    return {**_named(inputs), "labels": targets}, targets


def _named(inputs: Any) -> dict[str, Tensor]:
    if isinstance(inputs, dict):
        return inputs
    if isinstance(inputs, Tensor):
        return {"pixel_values" if inputs.is_floating_point() else "input_ids": inputs}
    raise DataError("the loss 'model' needs inputs that are one tensor or a dict with the names of the model's inputs")


def _map_samples(data: Dataset, change: Change) -> Dataset:
    return dataclasses.replace(data, train=_change_samples(data.train, change), test=_change_samples(data.test, change))


def _change_samples(samples: SampleSet, change: Change) -> SampleSet:
    """Samples in memory are changed at once, others when they are read."""
    if not len(samples):
        return samples
    if isinstance(samples, Samples) and samples.augmentation is None and samples.scaling is PLAIN:
        x, y = change(samples.x, samples.y)
        return dataclasses.replace(samples, x=x, y=y)
    return MappedSamples(samples, change)
