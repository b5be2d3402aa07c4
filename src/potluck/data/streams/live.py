"""A stream that comes in from outside: a bounded store that a source fills and a device's loop empties."""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potluck.data.augment import CropFlip
from potluck.data.buffers import Account, Buffer, Held
from potluck.data.buffers.runs import Numbers
from potluck.data.samples import PLAIN, Indices, Samples, Scaling
from potluck.data.streams.feed import FeedState
from potluck.data.streams.pace import Pace
from potluck.data.streams.records import Sample
from potluck.data.streams.sources.base import Inlet
from potluck.errors import DataError

__all__ = ["LiveFeed", "Store", "pour"]


class Store:
    """The tensors of records, by number; batches are scaled and augmented as the task's own are."""

    def __init__(self, scaling: Scaling = PLAIN, augmentation: CropFlip | None = None) -> None:
        self.scaling = scaling
        self.augmentation = augmentation
        self._found: dict[int, Sample] = {}

    @property
    def draws(self) -> bool:
        return self.augmentation is not None

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, number: int) -> Sample:
        return self._found[number]

    def put(self, number: int, sample: Sample) -> None:
        self._found[number] = sample

    def keep(self, numbers: Iterable[int]) -> None:
        """Forget all others. A new table replaces the old one, so that a thread that reads is not disturbed."""
        self._found = {number: self._found[number] for number in numbers}

    def labels(self, numbers: Numbers) -> npt.NDArray[np.int64]:
        return np.array([self._found[number].y for number in numbers.tolist()], np.int64)

    def batch(self, indices: Indices, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        found = [self._found[number] for number in indices.tolist()]
        inputs: npt.NDArray[Any] = np.stack([sample.x for sample in found])
        x, y = torch.from_numpy(inputs), torch.from_numpy(np.array([sample.y for sample in found], np.int64))
        stored = Samples(x, y, scaling=self.scaling, augmentation=self.augmentation)
        return stored.batch(np.arange(len(found)), rng)


class LiveFeed:
    """One device's stream; `now` is the device's clock and `limit` the most samples that its memory takes.

    `inlet` is where its records come in, and knows of those that do not.
    """

    def __init__(
        self, policy: Buffer, store: Store, now: Callable[[], float], limit: int, inlet: Inlet | None = None
    ) -> None:
        self.samples = store
        self._inlet = inlet
        self._name = secrets.token_hex(4)  # tells this stream's account from that of another life
        self._now = now
        self._pace = Pace()
        self._held = Held(policy, store.labels, limit)
        self._streamed = 0
        self._over = False
        self._using: list[int] = []
        self._waiting: list[tuple[int, Callable[[], object]]] = []

    @property
    def account(self) -> Account:
        return self._held.account

    @property
    def learns(self) -> bool:
        return self._held.learns

    def put(self, sample: Sample) -> None:
        """A sample has streamed in."""
        now, number = self._now(), self._streamed
        self._pace.arrived(now)
        self._streamed += 1
        self.samples.put(number, sample)
        self._held.arrive(number, number + 1, self.rate(now))
        self._tidy()
        self._wake()

    def end(self) -> None:
        """No sample will stream in any more: whoever waits for one is told when he asks."""
        self._over = True
        waiting, self._waiting = self._waiting, []
        for _, call in waiting:
            call()

    def rate(self, now: float) -> float:
        return self._pace.rate(now)

    def ready_at(self, want: int, now: float) -> float:
        want = self._held.wish(want, self.rate(now))
        if len(self._held) >= want:
            return now
        if self._over:
            raise DataError(f"the stream has ended; {len(self._held)} samples are left of the {want} for a batch")
        return math.inf

    def notify(self, want: int, call: Callable[[], object]) -> None:
        self._waiting.append((self._held.wish(want, self.rate(self._now())), call))
        self._wake()

    def take(self, want: int, now: float) -> Indices:
        taken = self._held.take(want, self.rate(now))
        self._using = taken.tolist()
        self._waiting.clear()
        self._tidy(always=True)
        return taken

    def gave(self, count: int) -> None:
        self.account.gave(count)

    def got(self, count: int) -> None:
        self.account.got(count)

    def learned(self, losses: Mapping[int, float]) -> None:
        self._held.learned(losses)

    def told(self) -> Mapping[str, int | str]:
        inlet = self._inlet
        refused = {} if inlet is None else {**msgspec.structs.asdict(inlet.refusals), "breaks": inlet.breaks}
        return {"stream": self._name, **msgspec.structs.asdict(self.account), **refused}

    def forget(self, now: float) -> None:
        self._held.forget()
        self._tidy(always=True)

    def state(self) -> FeedState:
        return FeedState(self._streamed, self._held.state())

    def restore(self, state: FeedState) -> None:
        """The account goes on; samples that were held then are gone, since tensors are not saved."""
        self._streamed = state.streamed
        self._held.restore(state.held)
        self._held.forget()

    def _tidy(self, always: bool = False) -> None:
        """Let go of tensors that nobody needs, not at every arrival but often enough to stay within twice the need."""
        needed = len(self._held) + len(self._using)
        if always or len(self.samples) > 2 * needed + 16:
            self.samples.keep([*self._using, *self._held.numbers().tolist()])

    def _wake(self) -> None:
        due = [call for want, call in self._waiting if len(self._held) >= want]
        self._waiting = [(want, call) for want, call in self._waiting if len(self._held) < want]
        for call in due:
            call()


async def pour(samples: AsyncIterator[Sample], feed: LiveFeed) -> None:
    """Let a source run into a feed, for as long as it runs."""
    try:
        async for sample in samples:
            feed.put(sample)
        feed.end()
    finally:
        if isinstance(samples, AsyncGenerator):
            await samples.aclose()
