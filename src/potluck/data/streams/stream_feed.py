"""What a device's loop knows of its stream, in both worlds.

want = batching.wanted(...)
at = feed.ready_at(want, now)      a moment, or infinity where nobody can know it: then `notify` calls back
ids = feed.take(want, at)          at most so many; `samples.batch(ids, rng)` gives their tensors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import numpy as np
from torch import Tensor

from potluck.data.buffers import SampleAccount, SampleBufferState
from potluck.data.samples import Indices

__all__ = ["IndexedSamples", "StreamFeed", "StreamFeedState"]


class StreamFeedState(msgspec.Struct, frozen=True):
    """All that a checkpoint must hold of a feed: a few hundred bytes."""

    streamed: int
    held: SampleBufferState


class IndexedSamples(Protocol):
    """Samples that can be asked for by id."""

    @property
    def needs_rng(self) -> bool:
        """Whether a batch is drawn at random, and so needs a generator."""

    def __len__(self) -> int: ...

    def batch(self, indices: Indices, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]: ...


class StreamFeed(Protocol):
    """A stream and the buffer that it runs into."""

    @property
    def account(self) -> SampleAccount: ...

    @property
    def samples(self) -> IndexedSamples: ...

    @property
    def needs_losses(self) -> bool:
        """Whether its policy goes by losses."""

    def rate_at(self, now: float) -> float:
        """Samples per second at this moment."""

    def ready_at(self, want: int, now: float) -> float:
        """When `want` samples will be there: now, later, or infinity where that is not known."""

    def call_when_ready(self, want: int, call: Callable[[], object]) -> None:
        """Call back once `want` samples are there, in case `ready_at` did not know when."""

    def take_samples(self, want: int, now: float) -> Indices:
        """The ids of at most `want` samples to train on; they stay good until the next batch is taken."""

    def count_given(self, count: int) -> None:
        """Of the batch just taken, so many samples went to other devices instead of being trained on here."""

    def count_received(self, count: int) -> None:
        """Samples that other devices sent, to be trained on now."""

    def update_class_worth(self, losses: Mapping[int, float]) -> None:
        """The mean loss of each class in the last batch, for policies that go by it."""

    def journal_fields(self) -> Mapping[str, int | str]:
        """What the journal must say of it since nobody else sees it; nothing where the account is kept elsewhere."""

    def drop_all(self, now: float) -> None:
        """The device lost its memory, and whatever streamed in until now."""

    def save_state(self) -> StreamFeedState: ...

    def restore_state(self, state: StreamFeedState) -> None: ...
