"""Where a turn's samples come from: the device's shard, a stream, or with data injection other streams, too."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from potluck.data.streams.stream_feed import StreamFeed
from potluck.data.streams.stream_records import SampleSpec
from potluck.journal import ACCOUNT, Instant, Scalar, Span
from potluck.loops.backends import LocalBatches
from potluck.loops.device_estimates import DeviceEstimates
from potluck.loops.messages import Gift, Give, Invite
from potluck.loops.node import Latch, Node
from potluck.loops.parts.stream_batching import StreamThroughput, split_batch_sizes, split_indices, turn_samples
from potluck.loops.sample_exchange import SampleExchange
from potluck.loops.settings import Rounds

__all__ = ["BatchSource", "ShardBatchSource", "StreamBatchSource"]

Indices = npt.NDArray[np.int64]

_MIN_SLEEP_S = 1e-9


class BatchSource(Protocol):
    """A device's source of mini-batches."""

    def expected_batch_size(self) -> int:
        """The size of the next mini-batch, as far as it is known."""

    def ready_batches(self, invite: Invite) -> LocalBatches | None:
        """The turn's mini-batches; None if they must be waited for."""

    async def wait_for_batches(self, invite: Invite) -> LocalBatches:
        """Wait for the turn's mini-batches."""

    def handle_give(self, give: Give) -> None:
        """Send samples to other devices."""

    def receive_gift(self, gift: Gift) -> None:
        """Take samples from another device."""


class ShardBatchSource:
    """Mini-batches of a device that holds its data."""

    def __init__(self, node: Node, settings: Rounds, shard: Indices) -> None:
        self._node = node
        self._settings = settings
        self._shard = shard

    def expected_batch_size(self) -> int:
        return self._settings.batching.batch_size_for(len(self._shard))

    def batches_per_turn(self) -> int | None:
        """How many mini-batches a turn has; None to continue the device's batch sequence."""
        return self._settings.local.batches_per_turn(self._settings.batching.batches_per_epoch(len(self._shard)))

    def ready_batches(self, invite: Invite) -> LocalBatches:
        batching, shard, rng, count = self._settings.batching, self._shard, self._node.rng, invite.count
        passes = self.batches_per_turn()
        return LocalBatches(
            batching.turn_batch_sizes(len(shard), passes),
            lambda: batching.choose_batches(shard, count, passes, rng),
            lambda: rng("train", count),
        )

    async def wait_for_batches(self, invite: Invite) -> LocalBatches:
        return self.ready_batches(invite)

    def handle_give(self, give: Give) -> None:
        pass

    def receive_gift(self, gift: Gift) -> None:
        pass


class StreamBatchSource:
    """Mini-batches of a device whose data streams in."""

    def __init__(
        self,
        node: Node,
        settings: Rounds,
        feed: StreamFeed,
        samples_per_s: float,
        sample_spec: SampleSpec | None,
        estimates: DeviceEstimates,
    ) -> None:
        self._node = node
        self._settings = settings
        self.feed = feed
        self._samples_per_s = samples_per_s  # that the device can train on
        self._estimates = estimates
        self._exchange = SampleExchange(node, feed, sample_spec, float(settings.retry))

    def expected_batch_size(self) -> int:
        throughput = StreamThroughput(self.feed.rate_at(self._node.now()), self._samples_per_s, self._estimates.turn_s)
        return turn_samples(self._settings.batching, throughput)

    def ready_batches(self, invite: Invite) -> None:
        return None

    async def wait_for_batches(self, invite: Invite) -> LocalBatches:
        began = self._node.now()
        self._estimates.begin_turn(began)
        wanted = self.expected_batch_size()
        self._exchange.expect_gifts(invite)
        await self._wait_for_samples(wanted)
        self._estimates.waited_s = self._node.now() - began
        self._exchange.offer_batch(invite.turn, self.feed.take_samples(wanted, self._node.now()))
        await self._exchange.wait_for_gifts()
        ids, samples, received = self._exchange.mix_gifts()
        self._record_stream(began, invite.round)
        sizes, rng, count = split_batch_sizes(self._settings.batching, len(ids)), self._node.rng, invite.count
        report_losses = self.feed.update_class_worth if self.feed.needs_losses else None
        return LocalBatches(
            sizes, lambda: split_indices(ids, sizes), lambda: rng("train", count), samples, report_losses, received
        )

    def handle_give(self, give: Give) -> None:
        self._exchange.handle_give(give)

    def receive_gift(self, gift: Gift) -> None:
        self._exchange.receive_gift(gift)

    async def _wait_for_samples(self, wanted: int) -> None:
        """Wait for samples, without limit: if a stream dries up, the coordinator's stall timeout ends the run."""
        while (ready := self.feed.ready_at(wanted, self._node.now())) > self._node.now():
            if math.isfinite(ready):
                await self._node.sleep(max(ready - self._node.now(), _MIN_SLEEP_S))  # a clock may wake slightly early
                continue
            ready_latch = Latch()
            self.feed.call_when_ready(wanted, ready_latch.open)
            await ready_latch.wait(60.0)

    def _record_stream(self, began: float, round: int) -> None:
        node, account = self._node, self.feed.account
        fields = {"round": round}
        if node.now() > began:
            node.record(Span(node.name, "stream", began, node.now(), fields))
        for name, value in (
            ("rate", self.feed.rate_at(node.now())), ("buffer", account.buffered), ("dropped", account.dropped),
        ):  # fmt: skip
            node.record(Scalar(node.name, name, node.now(), float(value), fields))
        if account_fields := self.feed.journal_fields():
            node.record(Instant(node.name, ACCOUNT, node.now(), {**fields, **account_fields}))
