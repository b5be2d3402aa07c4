"""The interface between a device's loop and its stream, the same in both worlds.

want = batching.wanted(...)
at = feed.ready_at(want, now)      a time, or infinity if unknown: then use `call_when_ready`
ids = feed.take_samples(want, at)  at most `want`; `samples.batch(ids, rng)` returns their tensors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
import numpy as np
import torch

from potluck.data.buffers import SampleAccount, SampleBufferState
from potluck.data.samples import Indices

__all__ = ["IndexedSamples", "StreamFeed", "StreamFeedState"]


class StreamFeedState(msgspec.Struct, frozen=True):
    """What a checkpoint stores of a feed: a few hundred bytes."""

    streamed: int
    held: SampleBufferState


class IndexedSamples(Protocol):
    """Samples that can be fetched by id."""

    @property
    def needs_rng(self) -> bool:
        """Whether `batch` uses a random generator."""

    def __len__(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of floating-point tensors in batches."""

    def batch(self, indices: Indices, rng: np.random.Generator | None = None) -> tuple[Any, Any]: ...

    def stored_batch(self, indices: Indices) -> tuple[Any, Any]: ...


class StreamFeed(Protocol):
    """A stream and the buffer that it fills."""

    @property
    def account(self) -> SampleAccount: ...

    @property
    def samples(self) -> IndexedSamples: ...

    @property
    def needs_losses(self) -> bool:
        """Whether its policy depends on class losses."""

    def rate_at(self, now: float) -> float:
        """Samples per second at time `now`."""

    def ready_at(self, want: int, now: float) -> float:
        """When `want` samples will be available: now, later, or infinity if unknown."""

    def call_when_ready(self, want: int, call: Callable[[], object]) -> None:
        """Call back once `want` samples are available; for when `ready_at` returns infinity."""

    def take_samples(self, want: int, now: float) -> Indices:
        """Take at most `want` samples; their ids stay valid until the next batch is taken."""

    def count_given(self, count: int) -> None:
        """Count copies of the batch's samples that went to other devices."""

    def count_received(self, count: int) -> None:
        """Count samples received from other devices for the current batch."""

    def update_class_worth(self, losses: Mapping[int, float]) -> None:
        """Report the mean loss of each class in the last batch, for policies that depend on it."""

    def journal_fields(self) -> Mapping[str, int | str]:
        """Fields for the journal that only the device knows; empty if the account is kept elsewhere."""

    def drop_all(self, now: float) -> None:
        """Drop everything that has streamed in: the device has lost its memory."""

    def save_state(self) -> StreamFeedState: ...

    def restore_state(self, state: StreamFeedState) -> None: ...
