"""What a turn costs each device, how much of the model it can afford, and how long it is expected to take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from potluck.data.streams.stream_feed import StreamFeed
from potluck.fleet import Device
from potluck.loops.backends import TurnIdentity
from potluck.loops.device_costs import DeviceCosts
from potluck.loops.parts.stream_batching import (
    StreamBatching,
    StreamThroughput,
    max_turn_samples,
    split_batch_sizes,
    turn_samples,
)
from potluck.loops.settings import Rounds
from potluck.model.submodel_interface import SubmodelExtractor, SubmodelSpec
from potluck.model.training_costs import BACKWARD_PER_FORWARD, forward_flops, pull_bytes, push_bytes

__all__ = ["DeviceSamples", "FeedFactory", "SampleLimit", "Shards", "TurnSizing"]

FeedFactory = Callable[[str], StreamFeed]
Shards = Mapping[str, npt.NDArray[np.int64]]

_RATE_TOLERANCE = 2.0  # times the rate of a stream that a device may see for a moment


class DeviceSamples(NamedTuple):
    """What each device has to train on: a shard, and where data streams in, a stream that replays it."""

    shards: Shards
    feeds: FeedFactory | None
    known_rates: bool = True  # of the streams: they are replayed as the job says


class SampleLimit(NamedTuple):
    """What a device may say that it trained on in a turn: more than `claimed` is a lie, more than `counted` is cut."""

    claimed: int
    counted: int


class TurnSizing:
    """The figures of one job's turns, by the nominal speeds and links of its fleet."""

    def __init__(
        self,
        rounds: Rounds,
        devices: Sequence[Device],
        whole: DeviceCosts,
        extractor: SubmodelExtractor | None = None,
        model_fraction: float | None = None,
        samples: DeviceSamples | None = None,
    ) -> None:
        self._rounds = rounds
        self._devices = {device.name: device for device in devices}
        self._whole = whole
        self._extractor = extractor
        self._model_fraction = model_fraction  # the trained model's MACs, where it is not the whole one
        self._fastest = max(float(device.flops) for device in devices)
        self._whole_on = lru_cache(maxsize=4096)(whole.with_speed)
        self._shards, self._feeds, self._known_rates = samples or DeviceSamples({}, None)
        self._max_shard_samples = lru_cache(maxsize=4096)(self._compute_max_shard_samples)
        self._rated_feeds: dict[str, StreamFeed] = {}
        self._expected_turn_s: dict[str, float] = {}

    def whole_model_costs(self, device: str) -> DeviceCosts:
        """Of the whole model, on a device."""
        measured, flops = self._whole.on_device(device), float(self._devices[device].flops)
        return self._whole_on(flops) if measured is self._whole else measured.with_speed(flops)

    def affordable_fraction(self, device: str) -> float:
        """The fraction of a whole step that fits into a mini-batch's slot, at nominal speed."""
        size, slot = self._rounds.batching.batch_size_for(2**40), self._rounds.slot
        slot_s = float(slot) if slot is not None else self._whole_on(self._fastest).step_s(size)
        step_s = self.whole_model_costs(device).step_s(size)
        return slot_s / step_s if step_s else 1.0  # an embedding alone costs no multiplications

    def turn_costs(self, turn: TurnIdentity) -> DeviceCosts:
        """Of what is pulled, trained and pushed in a turn; mini-batches that choose less pay a fraction of it."""
        spec = None if self._extractor is None else self._extractor.select_submodel(turn)
        if spec is None:
            return self.whole_model_costs(turn.device)
        costs = self._submodel_costs(spec).scaled_like(self._whole, self._whole.on_device(turn.device))
        if spec.once_macs:
            costs = replace(costs, once_flop=forward_flops(spec.once_macs) * len(self._shards[turn.device]))
        return costs.with_speed(float(self._devices[turn.device].flops))

    def macs_fraction(self, turn: TurnIdentity) -> float | None:
        """The fraction of the whole model's MACs that a turn trains; None: all, or each mini-batch chooses."""
        fraction = None if self._extractor is None else self._extractor.cost_fraction(turn)
        return self._model_fraction if fraction is None else fraction

    def expected_turn_s(self, device: str) -> float:
        """About how many seconds a device takes for a turn, by its nominal figures."""
        if device not in self._expected_turn_s:
            link = self._devices[device].link
            bytes_s = sum(self._whole.pull_bytes) / link.down + sum(self._whole.push_bytes) / link.up
            step_s = self.whole_model_costs(device).step_s(self._turn_samples(device))
            self._expected_turn_s[device] = float(step_s + bytes_s + 4 * link.latency)
        return self._expected_turn_s[device]

    def sample_limit(self, device: str, declared: int | None, since: float, now: float) -> SampleLimit:
        """How many samples a device can train on in a turn from `since` to `now`, beside gifts.

        That depends on those it holds: what it declared when it joined, of which no more count than the job's split
        gives it and `own_samples`; without a declaration, what the split gives it.
        """
        if self._feeds is not None:
            most = self._max_stream_samples(device, since, now)
            return SampleLimit(most, most)
        known = len(self._shards[device])
        counted = known if declared is None else min(declared, known + self._rounds.own_samples)
        return SampleLimit(
            self._max_shard_samples(device, known if declared is None else declared),
            self._max_shard_samples(device, counted),
        )

    def _compute_max_shard_samples(self, device: str, held: int) -> int:
        if held == 0:
            return 0
        batching, balance = self._rounds.batching, self._rounds.submodel.class_balance(self._extractor, device)
        held *= 2 if balance is not None and balance.negatives == "generated" else 1
        per_epoch, size = batching.batches_per_epoch(held), batching.batch_size_for(held)
        passes = self._rounds.local.batches_per_turn(per_epoch)
        if passes is None:
            return size
        return min(passes * (size + 1), math.ceil(passes / per_epoch) * held)  # a single left-over one joins a batch

    def _max_stream_samples(self, device: str, since: float, now: float) -> int:
        """Of a stream that is replayed at a known rate as many as it brings, otherwise as many as a turn may have."""
        batching = self._rounds.batching
        if not isinstance(batching, StreamBatching) or not self._known_rates:
            return max_turn_samples(batching)
        assert self._feeds is not None
        if device not in self._rated_feeds:
            self._rated_feeds[device] = self._feeds(device)
        feed = self._rated_feeds[device]
        return turn_samples(batching, StreamThroughput(_RATE_TOLERANCE * max(feed.rate_at(since), feed.rate_at(now))))

    def largest_batch(self, device: str) -> int:
        """The samples of a device's largest mini-batch; of a stream, at its nominal rate."""
        if self._feeds is not None:
            return split_batch_sizes(self._rounds.batching, self._turn_samples(device))[0]
        return self._rounds.batching.batch_size_for(len(self._shards[device]))

    def _turn_samples(self, device: str) -> int:
        batching = self._rounds.batching
        if self._feeds is not None:
            return turn_samples(batching, StreamThroughput(self._feeds(device).rate_at(0.0)))
        held = len(self._shards[device])
        passes = self._rounds.local.batches_per_turn(batching.batches_per_epoch(held))
        return sum(batching.turn_batch_sizes(held, passes))

    def _submodel_costs(self, spec: SubmodelSpec) -> DeviceCosts:
        forward = [forward_flops(macs) for macs in spec.macs]
        if self._extractor is not None and self._extractor.chooses_per_batch:
            forward = list(self._whole.forward_flop)  # a mini-batch's choice is a fraction of the whole model
        layout = spec.layout
        trained = [bound > 0 for bound in layout.param_bounds[1:]]  # no gradients flow into frozen first layers
        backward = [BACKWARD_PER_FORWARD * flop * learns for flop, learns in zip(forward, trained, strict=True)]
        if spec.forward_macs:
            forward = [flop + forward_flops(macs) for flop, macs in zip(forward, spec.forward_macs, strict=True)]
        return DeviceCosts(forward, backward, pull_bytes(layout), push_bytes(layout, self._rounds.codec))
