"""What each device has learned and kept in its present life; saved with every checkpoint, since its turns go by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from torch import Tensor

from potluck.data.buffers import Account
from potluck.data.streams.feed import Feed, FeedState
from potluck.loops.estimates import Estimates, LinkPrior
from potluck.model.codecs.memory import Memory

__all__ = ["Belongings", "Kept"]

_PREFIX = "memory/"


class Kept(msgspec.Struct):
    """The part of it that is words and numbers; an incarnation beside each."""

    seen: dict[str, tuple[int, Estimates]] = {}
    feeds: dict[str, tuple[int, FeedState]] = {}


class Belongings:
    """Handed to a device when its life begins; a new life begins anew, with an empty buffer."""

    def __init__(self, kept: Kept, tensors: Mapping[str, Tensor]) -> None:
        self._seen = kept.seen
        self._feed_states = dict(kept.feeds)
        self._feeds: dict[str, tuple[int, Feed]] = {}
        self._memories = _restored(tensors)

    @property
    def feeds(self) -> dict[str, Feed]:
        return {device: feed for device, (_, feed) in self._feeds.items()}

    @property
    def account(self) -> Account | None:
        """Where the samples of all streams went; `peak` is the most that can have been buffered at once."""
        accounts = [feed.account for feed in self.feeds.values()]
        return sum(accounts, Account()) if accounts else None

    def seen(self, device: str, incarnation: int, prior: LinkPrior) -> Estimates:
        """What it has seen of its link and its speed."""
        life, seen = self._seen.get(device, (0, None))
        if seen is None or life != incarnation:
            seen = Estimates.of(prior)
            self._seen[device] = (incarnation, seen)
        return seen

    def memory(self, device: str, incarnation: int, make: Callable[[], Memory | None]) -> Memory | None:
        """What its codec held back."""
        life, memory = self._memories.get(device, (0, None))
        if memory is None or life != incarnation:
            memory = make()
            if memory is not None:
                self._memories[device] = (incarnation, memory)
        return memory

    def feed(self, device: str, incarnation: int, make: Callable[[], Feed], now: float) -> Feed:
        """Its stream, which runs on whether it lives or not, and its buffer, which does not."""
        life, feed = self._feeds.get(device, (1, None))
        if feed is None:
            feed = make()
            if device in self._feed_states:
                life, state = self._feed_states.pop(device)
                feed.restore(state)
        if life != incarnation:
            feed.forget(now)
        self._feeds[device] = (incarnation, feed)
        return feed

    def kept(self) -> Kept:
        states = {device: (life, feed.state()) for device, (life, feed) in self._feeds.items()}
        return Kept(self._seen, {**self._feed_states, **states})

    def tensors(self) -> dict[str, Tensor]:
        """Copies, for training goes on."""
        return {
            f"{_PREFIX}{device}/{life}/{name}": tensor
            for device, (life, memory) in self._memories.items()
            for name, tensor in memory.state().items()
        }


def _restored(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, Memory]]:
    states: dict[tuple[str, int], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(_PREFIX):
            device, life, what = name.removeprefix(_PREFIX).rsplit("/", 2)
            states.setdefault((device, int(life)), {})[what] = tensor
    return {device: (life, Memory.restore(state)) for (device, life), state in states.items()}
