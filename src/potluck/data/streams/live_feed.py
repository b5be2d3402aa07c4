"""The feed of a live device: a source fills its bounded buffer and the device's loop takes batches from it."""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_map

from potluck.data.buffers import BufferPolicy, SampleAccount, SampleBuffer
from potluck.data.buffers.range_queue import Numbers
from potluck.data.samples import PLAIN, CropFlip, Indices, Samples, SampleSet, Scaling
from potluck.data.streams.sources.stream_source import StreamIngest
from potluck.data.streams.stream_feed import StreamFeedState
from potluck.data.streams.stream_records import StreamSample
from potluck.errors import DataError

__all__ = ["ArrivalRate", "LiveFeed", "SampleStore", "run_source"]


class SampleStore:
    """Buffered samples by number; batches are scaled and augmented like the task's own data.

    The samples of a replay are rows of `replayed` and are not copied.
    """

    def __init__(
        self,
        scaling: Scaling = PLAIN,
        augmentation: CropFlip | None = None,
        dtype: torch.dtype = torch.float32,
        replayed: SampleSet | None = None,
    ) -> None:
        self.scaling = scaling
        self.augmentation = augmentation
        self.dtype = dtype
        self._replayed = replayed
        self._samples: dict[int, StreamSample] = {}

    @property
    def needs_rng(self) -> bool:
        return self.augmentation is not None or (self._replayed is not None and self._replayed.needs_rng)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: int) -> StreamSample:
        return self._samples[number]

    def put_sample(self, number: int, sample: StreamSample) -> None:
        self._samples[number] = sample

    def keep_only(self, numbers: Iterable[int]) -> None:
        """Drop all others. Replaces the table instead of changing it, so that a reading thread is not disturbed."""
        self._samples = {number: self._samples[number] for number in numbers}

    def labels(self, numbers: Numbers) -> npt.NDArray[np.int64]:
        """Their class labels, or zeros where targets are not labels."""
        targets = [self._samples[number].y for number in numbers.tolist()]
        return np.array([target if isinstance(target, int) else 0 for target in targets], np.int64)

    def batch(self, indices: Indices, rng: np.random.Generator | None = None) -> tuple[Any, Any]:
        rows = self._rows(indices)
        if rows is not None and self._replayed is not None:
            return self._replayed.batch(rows, rng)
        x, y = self.stored_batch(indices)
        stored = Samples(x, y, scaling=self.scaling, augmentation=self.augmentation, dtype=self.dtype)
        return stored.batch(np.arange(len(indices)), rng)

    def stored_batch(self, indices: Indices) -> tuple[Any, Any]:
        """These samples as stored."""
        rows = self._rows(indices)
        if rows is not None and self._replayed is not None:
            return self._replayed.stored_batch(rows)
        samples = [self._samples[number] for number in indices.tolist()]
        return _stack_arrays([sample.x for sample in samples]), _stack_arrays([sample.y for sample in samples])

    def _rows(self, indices: Indices) -> Indices | None:
        """The rows of a replayed data set; None where samples are held by value."""
        rows = [self._samples[number].row for number in indices.tolist()]
        return None if not rows or rows[0] is None else np.array(rows, np.int64)


def _stack_arrays(trees: list[Any]) -> Any:
    """Samples as one batch of tensors."""
    return tree_map(lambda *leaves: torch.from_numpy(np.stack([np.asarray(leaf) for leaf in leaves])), *trees)


class LiveFeed:
    """One device's stream; `now` is the device's clock and `limit` the most samples that fit its memory.

    `ingest` checks incoming records and counts those it refuses.
    """

    def __init__(
        self,
        policy: BufferPolicy,
        store: SampleStore,
        now: Callable[[], float],
        limit: int,
        ingest: StreamIngest | None = None,
    ) -> None:
        self.samples = store
        self._ingest = ingest
        self._stream_id = secrets.token_hex(4)  # distinguishes the accounts of different incarnations
        self._now = now
        self._arrival_rate = ArrivalRate()
        self._buffer = SampleBuffer(policy, store.labels, limit)
        self._streamed = 0
        self._ended = False
        self._using: list[int] = []
        self._waiting: list[tuple[int, Callable[[], object]]] = []

    @property
    def account(self) -> SampleAccount:
        return self._buffer.account

    @property
    def needs_losses(self) -> bool:
        return self._buffer.needs_losses

    def put_sample(self, sample: StreamSample) -> None:
        """Add a sample that has streamed in."""
        now, number = self._now(), self._streamed
        self._arrival_rate.count_arrival(now)
        self._streamed += 1
        self.samples.put_sample(number, sample)
        self._buffer.add_arrivals(number, number + 1, self.rate_at(now))
        self._release_samples()
        self._notify_waiting()

    def end_stream(self) -> None:
        """The stream has ended: wake all waiting calls, whose `ready_at` then raises DataError."""
        self._ended = True
        waiting, self._waiting = self._waiting, []
        for _, call in waiting:
            call()

    def rate_at(self, now: float) -> float:
        return self._arrival_rate.rate_at(now)

    def ready_at(self, want: int, now: float) -> float:
        want = self._buffer.set_demand(want, self.rate_at(now))
        if len(self._buffer) >= want:
            return now
        if self._ended:
            raise DataError(f"the stream has ended; {len(self._buffer)} samples are left of the {want} for a batch")
        return math.inf

    def call_when_ready(self, want: int, call: Callable[[], object]) -> None:
        self._waiting.append((self._buffer.set_demand(want, self.rate_at(self._now())), call))
        self._notify_waiting()

    def take_samples(self, want: int, now: float) -> Indices:
        taken = self._buffer.take_samples(want, self.rate_at(now))
        self._using = taken.tolist()
        self._waiting.clear()
        self._release_samples(always=True)
        return taken

    def count_given(self, count: int) -> None:
        self.account.count_given(count)

    def count_received(self, count: int) -> None:
        self.account.count_received(count)

    def update_class_worth(self, losses: Mapping[int, float]) -> None:
        self._buffer.update_class_worth(losses)

    def journal_fields(self) -> Mapping[str, int | str]:
        ingest = self._ingest
        refused = {} if ingest is None else {**msgspec.structs.asdict(ingest.refusals), "breaks": ingest.disconnects}
        return {"stream": self._stream_id, **msgspec.structs.asdict(self.account), **refused}

    def drop_all(self, now: float) -> None:
        self._buffer.drop_all()
        self._release_samples(always=True)

    def save_state(self) -> StreamFeedState:
        return StreamFeedState(self._streamed, self._buffer.save_state())

    def restore_state(self, state: StreamFeedState) -> None:
        """Restore the account; the samples held at the checkpoint are dropped, since tensors are not saved."""
        self._streamed = state.streamed
        self._buffer.restore_state(state.held)
        self._buffer.drop_all()

    def _release_samples(self, always: bool = False) -> None:
        """Free unneeded tensors, not at every arrival but often enough to hold at most about twice the need."""
        needed = len(self._buffer) + len(self._using)
        if always or len(self.samples) > 2 * needed + 16:
            self.samples.keep_only([*self._using, *self._buffer.buffered_numbers().tolist()])

    def _notify_waiting(self) -> None:
        due = [call for want, call in self._waiting if len(self._buffer) >= want]
        self._waiting = [(want, call) for want, call in self._waiting if len(self._buffer) < want]
        for call in due:
            call()


async def run_source(samples: AsyncIterator[StreamSample], feed: LiveFeed) -> None:
    """Put every sample of a source into a feed until the source ends."""
    try:
        async for sample in samples:
            feed.put_sample(sample)
        feed.end_stream()
    finally:
        if isinstance(samples, AsyncGenerator):
            await samples.aclose()


class ArrivalRate:
    """Samples per second over about the last `memory_s` seconds, in constant memory."""

    def __init__(self, memory_s: float = 5.0) -> None:
        self._memory = memory_s
        self._count = 0.0
        self._seen = math.nan
        self._began = math.nan

    def count_arrival(self, now: float) -> None:
        if math.isnan(self._began):  # the first arrival only starts the clock
            self._began = self._seen = now
            return
        self._count = self._decayed_count(now) + 1.0
        self._seen = now

    def rate_at(self, now: float) -> float:
        """The decayed count, divided by what a steady stream of 1/s would have counted in the same time."""
        if math.isnan(self._began) or now <= self._began:
            return 0.0
        full = self._memory * -math.expm1((self._began - now) / self._memory)
        return self._decayed_count(now) / full

    def _decayed_count(self, now: float) -> float:
        return self._count * math.exp((self._seen - now) / self._memory)
