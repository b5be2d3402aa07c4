"""Per-device state that affects training (estimates, error feedback, buffers).

Saved with every checkpoint, and reset when a device restarts: its incarnation is stored beside each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from torch import Tensor

from potluck.data.buffers import SampleAccount
from potluck.data.streams.stream_feed import StreamFeed, StreamFeedState
from potluck.loops.device_estimates import DeviceEstimates, LinkPrior
from potluck.model.codecs.codec_state import CodecState

__all__ = ["DeviceStates", "SavedDeviceStates"]

_PREFIX = "memory/"  # of the error feedback's tensors in a checkpoint


class SavedDeviceStates(msgspec.Struct):
    """What a checkpoint's metadata holds of it; the tensors are saved with the model's."""

    seen: dict[str, tuple[int, DeviceEstimates]] = {}
    feeds: dict[str, tuple[int, StreamFeedState]] = {}


class DeviceStates:
    """The state of all devices; a device gets its own when an incarnation starts."""

    def __init__(self, saved: SavedDeviceStates, tensors: Mapping[str, Tensor]) -> None:
        self._estimates = saved.seen
        self._feed_states = dict(saved.feeds)
        self._feeds: dict[str, tuple[int, StreamFeed]] = {}
        self._memories = _restore_memories(tensors)

    @property
    def feeds(self) -> dict[str, StreamFeed]:
        return {device: feed for device, (_, feed) in self._feeds.items()}

    @property
    def sample_account(self) -> SampleAccount | None:
        """What became of the samples of all streams; `peak` is an upper bound of what was buffered at once."""
        accounts = [feed.account for feed in self.feeds.values()]
        return sum(accounts, SampleAccount()) if accounts else None

    def estimates_for(self, device: str, incarnation: int, prior: LinkPrior) -> DeviceEstimates:
        """Estimates of the device's link and speed."""
        since, estimates = self._estimates.get(device, (0, None))
        if estimates is None or since != incarnation:
            estimates = DeviceEstimates.from_prior(prior)
            self._estimates[device] = (incarnation, estimates)
        return estimates

    def codec_memory_for(
        self, device: str, incarnation: int, make: Callable[[], CodecState | None]
    ) -> CodecState | None:
        """The error feedback of the device's codec."""
        since, memory = self._memories.get(device, (0, None))
        if memory is None or since != incarnation:
            memory = make()
            if memory is not None:
                self._memories[device] = (incarnation, memory)
        return memory

    def feed_for(self, device: str, incarnation: int, make: Callable[[], StreamFeed], now: float) -> StreamFeed:
        """The device's stream, which goes on while it is down, and its buffer, which is lost with the incarnation."""
        since, feed = self._feeds.get(device, (1, None))
        if feed is None:
            feed = make()
            if device in self._feed_states:
                since, state = self._feed_states.pop(device)
                feed.restore_state(state)
        if since != incarnation:
            feed.drop_all(now)
        self._feeds[device] = (incarnation, feed)
        return feed

    def to_saved(self) -> SavedDeviceStates:
        states = {device: (incarnation, feed.save_state()) for device, (incarnation, feed) in self._feeds.items()}
        return SavedDeviceStates(self._estimates, {**self._feed_states, **states})

    def copy_tensors(self) -> dict[str, Tensor]:
        """Copies, since training goes on."""
        return {
            f"{_PREFIX}{device}/{incarnation}/{name}": tensor
            for device, (incarnation, memory) in self._memories.items()
            for name, tensor in memory.to_tensors().items()
        }


def _restore_memories(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, CodecState]]:
    states: dict[tuple[str, int], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(_PREFIX):
            device, incarnation, what = name.removeprefix(_PREFIX).rsplit("/", 2)
            states.setdefault((device, int(incarnation)), {})[what] = tensor
    return {device: (incarnation, CodecState.from_tensors(state)) for (device, incarnation), state in states.items()}
