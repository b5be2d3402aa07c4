"""What each device has learned and kept in its present life; saved with every checkpoint, since its turns go by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from torch import Tensor

from potluck.data.buffers import SampleAccount
from potluck.data.streams.stream_feed import StreamFeed, StreamFeedState
from potluck.loops.device_estimates import DeviceEstimates, LinkPrior
from potluck.model.codecs.codec_state import CodecState

__all__ = ["DeviceStates", "SavedDeviceStates"]

_PREFIX = "memory/"


class SavedDeviceStates(msgspec.Struct):
    """The part of it that is words and numbers; an incarnation beside each."""

    seen: dict[str, tuple[int, DeviceEstimates]] = {}
    feeds: dict[str, tuple[int, StreamFeedState]] = {}


class DeviceStates:
    """Handed to a device when its life begins; a new life begins anew, with an empty buffer."""

    def __init__(self, kept: SavedDeviceStates, tensors: Mapping[str, Tensor]) -> None:
        self._estimates = kept.seen
        self._feed_states = dict(kept.feeds)
        self._feeds: dict[str, tuple[int, StreamFeed]] = {}
        self._memories = _restore_memories(tensors)

    @property
    def feeds(self) -> dict[str, StreamFeed]:
        return {device: feed for device, (_, feed) in self._feeds.items()}

    @property
    def sample_account(self) -> SampleAccount | None:
        """Where the samples of all streams went; `peak` is the most that can have been buffered at once."""
        accounts = [feed.account for feed in self.feeds.values()]
        return sum(accounts, SampleAccount()) if accounts else None

    def estimates_for(self, device: str, incarnation: int, prior: LinkPrior) -> DeviceEstimates:
        """What it has seen of its link and its speed."""
        life, seen = self._estimates.get(device, (0, None))
        if seen is None or life != incarnation:
            seen = DeviceEstimates.from_prior(prior)
            self._estimates[device] = (incarnation, seen)
        return seen

    def codec_memory_for(
        self, device: str, incarnation: int, make: Callable[[], CodecState | None]
    ) -> CodecState | None:
        """What its codec held back."""
        life, memory = self._memories.get(device, (0, None))
        if memory is None or life != incarnation:
            memory = make()
            if memory is not None:
                self._memories[device] = (incarnation, memory)
        return memory

    def feed_for(self, device: str, incarnation: int, make: Callable[[], StreamFeed], now: float) -> StreamFeed:
        """Its stream, which runs on whether it lives or not, and its buffer, which does not."""
        life, feed = self._feeds.get(device, (1, None))
        if feed is None:
            feed = make()
            if device in self._feed_states:
                life, state = self._feed_states.pop(device)
                feed.restore_state(state)
        if life != incarnation:
            feed.drop_all(now)
        self._feeds[device] = (incarnation, feed)
        return feed

    def to_saved(self) -> SavedDeviceStates:
        states = {device: (life, feed.save_state()) for device, (life, feed) in self._feeds.items()}
        return SavedDeviceStates(self._estimates, {**self._feed_states, **states})

    def copy_tensors(self) -> dict[str, Tensor]:
        """Copies, for training goes on."""
        return {
            f"{_PREFIX}{device}/{life}/{name}": tensor
            for device, (life, memory) in self._memories.items()
            for name, tensor in memory.to_tensors().items()
        }


def _restore_memories(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, CodecState]]:
    states: dict[tuple[str, int], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(_PREFIX):
            device, life, what = name.removeprefix(_PREFIX).rsplit("/", 2)
            states.setdefault((device, int(life)), {})[what] = tensor
    return {device: (life, CodecState.from_tensors(state)) for (device, life), state in states.items()}
