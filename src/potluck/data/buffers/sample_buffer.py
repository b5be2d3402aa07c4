"""One device's buffer: sequence numbers of its stream's samples, kept as a policy says, every one accounted for."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from potluck.data.buffers.buffer_policies import BufferPolicy, Labels
from potluck.data.buffers.range_queue import Numbers, RangeQueue, Run
from potluck.data.buffers.sample_account import SampleAccount

__all__ = ["SampleBuffer", "SampleBufferState"]

_MEMORY = 0.8  # how much of a class's worth is what it was before


class SampleBufferState(msgspec.Struct, frozen=True):
    """All that a checkpoint must hold of a buffer."""

    account: SampleAccount
    runs: list[Run]
    want: int
    worth: dict[int, float]


class SampleBuffer:
    """The buffered samples of one device; `limit` caps them whatever the policy allows."""

    def __init__(self, policy: BufferPolicy, labels: Labels, limit: int | None = None) -> None:
        self.account = SampleAccount()
        self._policy = policy
        self._labels = labels
        self._limit = limit
        self._ranges = RangeQueue()
        self._demand = 0
        self._worth: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._ranges)

    @property
    def needs_losses(self) -> bool:
        return self._policy.needs_losses

    def max_samples(self, rate: float) -> float:
        """The most that is kept at this rate."""
        bound = self._policy.max_samples(rate, self._demand)
        return bound if self._limit is None else min(bound, self._limit)

    def set_demand(self, want: int, rate: float) -> int:
        """So many are wanted next, so that many are kept until then; fewer where memory does not take them."""
        self._demand = want if self._limit is None else min(want, self._limit)
        self._trim_to_bound(rate)
        return self._demand

    def add_arrivals(self, start: int, stop: int, rate: float) -> None:
        """The samples from `start` to before `stop` have streamed in."""
        self._ranges.append_range(start, stop)
        self.account.count_streamed(stop - start)
        self._trim_to_bound(rate)
        self.account.update_peak()

    def take_samples(self, want: int, rate: float) -> Numbers:
        """At most `want` samples to train on now."""
        before = len(self._ranges)
        taken, self._ranges = self._policy.split_batch(self._ranges, min(want, before), self._labels, self._worth)
        self.account.count_taken(len(taken))
        self.account.count_dropped(before - len(taken) - len(self._ranges))
        self._trim_to_bound(rate)
        return taken

    def drop_all(self) -> None:
        """All that is held is lost, as when a device loses its power."""
        self.account.count_dropped(len(self._ranges))
        self._ranges = RangeQueue()

    def update_class_worth(self, losses: Mapping[int, float]) -> None:
        """The mean loss of each class in the last batch."""
        for one, loss in losses.items():
            if math.isfinite(loss):
                self._worth[one] = _MEMORY * self._worth.get(one, loss) + (1 - _MEMORY) * loss

    def buffered_numbers(self) -> Numbers:
        return self._ranges.all_numbers()

    def save_state(self) -> SampleBufferState:
        account = msgspec.structs.replace(self.account)
        return SampleBufferState(account, self._ranges.list_ranges(), self._demand, dict(self._worth))

    def restore_state(self, state: SampleBufferState) -> None:
        self.account = msgspec.structs.replace(state.account)
        self._ranges = RangeQueue((start, stop) for start, stop in state.runs)
        self._demand, self._worth = state.want, dict(state.worth)

    def _trim_to_bound(self, rate: float) -> None:
        bound, before = self.max_samples(rate), len(self._ranges)
        if before > bound:
            self._ranges = self._policy.trim_samples(self._ranges, int(bound), self._labels, self._worth)
            self.account.count_dropped(before - len(self._ranges))
