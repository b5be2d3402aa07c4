"""A data set that streams in at a rate, worked out in closed form: no event per sample, whatever the rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from potluck.data.buffers import Account, Buffer, Held
from potluck.data.buffers.runs import Numbers
from potluck.data.samples import Indices
from potluck.data.streams.arrivals import Arrivals
from potluck.data.streams.feed import FeedState, Tensors

__all__ = ["Order", "ReplayFeed"]

_REMEMBERED = 4  # passes whose order is kept at hand


class Order:
    """Sample k of an endless stream: the shard over and over, in a new order each time."""

    def __init__(self, shard: Indices, rng: Callable[[int], np.random.Generator]) -> None:
        self._shard = shard
        self._rng = rng
        self._passes: dict[int, Indices] = {}

    def ids(self, numbers: Numbers) -> Indices:
        """Which samples these are."""
        passes, places = np.divmod(numbers, len(self._shard))
        found = np.empty(len(numbers), np.int64)
        for number in np.unique(passes):
            here = passes == number
            found[here] = self._pass(int(number))[places[here]]
        return found

    def _pass(self, number: int) -> Indices:
        order = self._passes.get(number)
        if order is None:
            order = self._passes[number] = self._shard[self._rng(number).permutation(len(self._shard))]
            if len(self._passes) > _REMEMBERED:
                del self._passes[next(iter(self._passes))]
        return order


class ReplayFeed:
    """One device's share of a data set as a stream."""

    def __init__(
        self,
        arrivals: Arrivals,
        order: Order,
        policy: Buffer,
        samples: Tensors,
        labels: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.samples = samples
        self._arrivals = arrivals
        self._order = order
        self._labels = labels
        self._held = Held(policy, self._labels_of)
        self._streamed = 0

    @property
    def account(self) -> Account:
        return self._held.account

    @property
    def learns(self) -> bool:
        return self._held.learns

    def rate(self, now: float) -> float:
        return self._arrivals.rate(now)

    def ready_at(self, want: int, now: float) -> float:
        want = self._held.wish(want, self.rate(now))
        self._advance(now)
        lacking = want - len(self._held)
        return now if lacking <= 0 else max(now, self._arrivals.when(self._streamed + lacking))

    def notify(self, want: int, call: Callable[[], object]) -> None:
        """Never: `ready_at` knows."""

    def take(self, want: int, now: float) -> Indices:
        self._advance(now)
        return self._order.ids(self._held.take(want, self.rate(now)))

    def gave(self, count: int) -> None:
        self.account.gave(count)

    def got(self, count: int) -> None:
        self.account.got(count)

    def learned(self, losses: Mapping[int, float]) -> None:
        self._held.learned(losses)

    def told(self) -> Mapping[str, int | str]:
        return {}

    def forget(self, now: float) -> None:
        self._advance(now)
        self._held.forget()

    def state(self) -> FeedState:
        return FeedState(self._streamed, self._held.state())

    def restore(self, state: FeedState) -> None:
        self._streamed = state.streamed
        self._held.restore(state.held)

    def _advance(self, now: float) -> None:
        """Whatever has streamed in until now goes into the buffer."""
        arrived = max(self._streamed, self._arrivals.arrived(now))
        self._held.arrive(self._streamed, arrived, self.rate(now))
        self._streamed = arrived

    def _labels_of(self, numbers: Numbers) -> npt.NDArray[np.int64]:
        if self._labels is None:
            return np.zeros(len(numbers), np.int64)
        return self._labels[self._order.ids(numbers)]
