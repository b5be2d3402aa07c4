"""Per-device state that affects training (estimates, error feedback, optimizer state, buffers, a held model).

Saved with every checkpoint, and reset when a device restarts: its incarnation is stored beside each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from torch import Tensor

from potluck.data.buffers import SampleAccount
from potluck.data.streams.stream_feed import StreamFeed, StreamFeedState
from potluck.loops.device_estimates import DeviceEstimates, LinkPrior
from potluck.model.carried_state import CarriedState
from potluck.model.pull_deltas import HeldModel

__all__ = ["DeviceStates", "SavedDeviceStates"]

_PREFIX = "memory/"  # of the tensors in a checkpoint
_HELD = "held/"  # of the versions that devices hold, each saved once


class SavedDeviceStates(msgspec.Struct):
    """What a checkpoint's metadata holds of it; the tensors are saved with the model's."""

    estimates: dict[str, tuple[int, DeviceEstimates]] = msgspec.field(name="seen", default_factory=dict)
    feeds: dict[str, tuple[int, StreamFeedState]] = {}
    missing_frozen: dict[str, tuple[int, set[int]]] = {}
    held: dict[str, tuple[int, int]] = {}  # incarnation and version


class DeviceStates:
    """The state of all devices; a device gets its own when an incarnation starts."""

    def __init__(self, saved: SavedDeviceStates, tensors: Mapping[str, Tensor]) -> None:
        self._estimates = saved.estimates
        self._feed_states = dict(saved.feeds)
        self._feeds: dict[str, tuple[int, StreamFeed]] = {}
        self._carried = _restore_carried_states(tensors)
        self._missing_frozen = dict(saved.missing_frozen)
        self._held = {
            device: (incarnation, HeldModel(version, tensors.get(f"{_HELD}{version}")))
            for device, (incarnation, version) in saved.held.items()
        }

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

    def carried_state_for(
        self, device: str, incarnation: int, make: Callable[[], CarriedState | None]
    ) -> CarriedState | None:
        """What the device carries over from turn to turn."""
        since, carried = self._carried.get(device, (0, None))
        if carried is None or since != incarnation:
            carried = make()
            if carried is not None:
                self._carried[device] = (incarnation, carried)
        return carried

    def missing_frozen_for(self, device: str, incarnation: int, lacking: Iterable[int]) -> set[int]:
        """The layers whose frozen weights the device still has to fetch; at first those that it is `lacking`."""
        since, missing = self._missing_frozen.get(device, (0, set[int]()))
        if since != incarnation:
            missing = set(lacking)
            if missing:
                self._missing_frozen[device] = (incarnation, missing)
        return missing

    def held_model_for(self, device: str, incarnation: int) -> HeldModel:
        """The version of the model that the device holds."""
        since, held = self._held.get(device, (0, HeldModel()))
        if since != incarnation:
            held = HeldModel()
            self._held[device] = (incarnation, held)
        return held

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
        held = {device: (incarnation, model.version) for device, (incarnation, model) in self._held.items()}
        return SavedDeviceStates(self._estimates, {**self._feed_states, **states}, self._missing_frozen, held)

    def copy_tensors(self) -> dict[str, Tensor]:
        """Copies, since training goes on."""
        held = {f"{_HELD}{model.version}": model.params for _, model in self._held.values() if model.params is not None}
        carried_tensors = {
            f"{_PREFIX}{device}/{incarnation}/{name}": tensor
            for device, (incarnation, carried) in self._carried.items()
            for name, tensor in carried.to_tensors().items()
        }
        return {**held, **carried_tensors}


def _restore_carried_states(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, CarriedState]]:
    states: dict[tuple[str, int], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(_PREFIX):
            device, incarnation, what = name.removeprefix(_PREFIX).rsplit("/", 2)
            states.setdefault((device, int(incarnation)), {})[what] = tensor
    return {device: (incarnation, CarriedState.from_tensors(state)) for (device, incarnation), state in states.items()}
