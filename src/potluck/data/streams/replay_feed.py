"""A data set replayed as a stream at a given rate, computed in closed form: no event per sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from potluck.data.buffers import BufferPolicy, SampleAccount, SampleBuffer
from potluck.data.buffers.range_queue import Numbers
from potluck.data.iterable_stream import IterableOrder
from potluck.data.samples import Indices
from potluck.data.streams.stream_arrivals import StreamArrivals
from potluck.data.streams.stream_feed import IndexedSamples, StreamFeedState

__all__ = ["ReplayFeed", "ReplayOrder"]

_CACHED_PASSES = 4


class ReplayOrder:
    """Sample k of an endless stream: the shard repeated, reshuffled on each pass."""

    def __init__(self, shard: Indices, rng: Callable[[int], np.random.Generator]) -> None:
        self._shard = shard
        self._rng = rng
        self._passes: dict[int, Indices] = {}

    def sample_ids(self, numbers: Numbers) -> Indices:
        """Which samples these are."""
        passes, offsets = np.divmod(numbers, len(self._shard))
        sample_ids = np.empty(len(numbers), np.int64)
        for number in np.unique(passes):
            in_pass = passes == number
            sample_ids[in_pass] = self._pass_order(int(number))[offsets[in_pass]]
        return sample_ids

    def _pass_order(self, number: int) -> Indices:
        order = self._passes.get(number)
        if order is None:
            order = self._passes[number] = self._shard[self._rng(number).permutation(len(self._shard))]
            if len(self._passes) > _CACHED_PASSES:
                del self._passes[next(iter(self._passes))]
        return order


class ReplayFeed:
    """One device's shard of a data set as a stream."""

    def __init__(
        self,
        arrivals: StreamArrivals,
        order: ReplayOrder | IterableOrder,
        policy: BufferPolicy,
        samples: IndexedSamples,
        labels: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.samples = samples
        self._arrivals = arrivals
        self._order = order
        self._labels = labels
        self._buffer = SampleBuffer(policy, self._labels_of)
        self._streamed = 0

    @property
    def account(self) -> SampleAccount:
        return self._buffer.account

    @property
    def needs_losses(self) -> bool:
        return self._buffer.needs_losses

    def rate_at(self, now: float) -> float:
        return self._arrivals.rate_at(now)

    def ready_at(self, want: int, now: float) -> float:
        want = self._buffer.set_demand(want, self.rate_at(now))
        self._add_arrivals(now)
        lacking = want - len(self._buffer)
        return now if lacking <= 0 else max(now, self._arrivals.arrival_time(self._streamed + lacking))

    def call_when_ready(self, want: int, call: Callable[[], object]) -> None:
        """Never: `ready_at` knows."""

    def take_samples(self, want: int, now: float) -> Indices:
        self._add_arrivals(now)
        return self._order.sample_ids(self._buffer.take_samples(want, self.rate_at(now)))

    def count_given(self, count: int) -> None:
        self.account.count_given(count)

    def count_received(self, count: int) -> None:
        self.account.count_received(count)

    def update_class_worth(self, losses: Mapping[int, float]) -> None:
        self._buffer.update_class_worth(losses)

    def journal_fields(self) -> Mapping[str, int | str]:
        return {}

    def drop_all(self, now: float) -> None:
        self._add_arrivals(now)
        self._buffer.drop_all()

    def save_state(self) -> StreamFeedState:
        return StreamFeedState(self._streamed, self._buffer.save_state())

    def restore_state(self, state: StreamFeedState) -> None:
        self._streamed = state.streamed
        self._buffer.restore_state(state.held)

    def _add_arrivals(self, now: float) -> None:
        """Whatever has streamed in until now goes into the buffer."""
        arrived = max(self._streamed, self._arrivals.arrived_by(now))
        self._buffer.add_arrivals(self._streamed, arrived, self.rate_at(now))
        self._streamed = arrived

    def _labels_of(self, numbers: Numbers) -> npt.NDArray[np.int64]:
        if self._labels is None:
            return np.zeros(len(numbers), np.int64)
        return self._labels[self._order.sample_ids(numbers)]
