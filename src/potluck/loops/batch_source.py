"""Where a turn's samples come from: the device's shard, or a stream.

With data injection a device sends some of its batch to others and waits for theirs as long as for any request; what
arrives later is dropped and counted.
"""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from potluck.data.streams.injected_samples import MixedSamples, pack_samples, refusal_reason
from potluck.data.streams.stream_feed import StreamFeed
from potluck.journal import ACCOUNT, Instant, Scalar, Span
from potluck.loops.backends import LocalBatches
from potluck.loops.device_estimates import DeviceEstimates
from potluck.loops.messages import Gift, Invite
from potluck.loops.node import Latch, Node
from potluck.loops.parts.stream_batching import StreamThroughput, split_batch_sizes, split_indices, turn_samples
from potluck.loops.settings import Rounds
from potluck.payload import Payload

__all__ = ["BatchSource", "SampleFormat", "ShardBatchSource", "StreamBatchSource"]

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

    def ready_batches(self, invite: Invite) -> LocalBatches:
        batching, shard, rng, count = self._settings.batching, self._shard, self._node.rng, invite.count
        passes = self._settings.local.batches_per_turn(batching.batches_per_epoch(len(shard)))
        return LocalBatches(
            batching.turn_batch_sizes(len(shard), passes),
            lambda: batching.choose_batches(shard, count, passes, rng),
            lambda: rng("train", count),
        )

    async def wait_for_batches(self, invite: Invite) -> LocalBatches:
        return self.ready_batches(invite)

    def receive_gift(self, gift: Gift) -> None:
        pass


class SampleFormat(NamedTuple):
    """What samples from other devices must look like."""

    shape: tuple[int, ...] = ()
    classes: int = 0


class StreamBatchSource:
    """Mini-batches of a device whose data streams in."""

    def __init__(
        self,
        node: Node,
        settings: Rounds,
        feed: StreamFeed,
        samples_per_s: float,
        sample_format: SampleFormat,
        estimates: DeviceEstimates,
    ) -> None:
        self._node = node
        self._settings = settings
        self.feed = feed
        self._samples_per_s = samples_per_s  # that the device can train on
        self._estimates = estimates
        self._sample_format = sample_format
        self._round = -1
        self._gifts: dict[str, Gift] = {}
        self._expected = 0
        self._gifts_complete = Latch()

    def expected_batch_size(self) -> int:
        throughput = StreamThroughput(self.feed.rate_at(self._node.now()), self._samples_per_s, self._estimates.turn_s)
        return turn_samples(self._settings.batching, throughput)

    def ready_batches(self, invite: Invite) -> None:
        return None

    async def wait_for_batches(self, invite: Invite) -> LocalBatches:
        began = self._node.now()
        self._estimates.begin_turn(began)
        wanted = self.expected_batch_size()
        self._expect_gifts(invite)
        await self._wait_for_samples(wanted)
        self._estimates.waited_s = self._node.now() - began
        ids = self._send_gifts(invite, self.feed.take_samples(wanted, self._node.now()))
        await self._wait_for_gifts(len(ids))
        ids, samples = self._mix_gifts(ids)
        self._record_stream(began, invite.round)
        sizes, rng, count = split_batch_sizes(self._settings.batching, len(ids)), self._node.rng, invite.count
        report_losses = self.feed.update_class_worth if self.feed.needs_losses else None
        return LocalBatches(
            sizes, lambda: split_indices(ids, sizes), lambda: rng("train", count), samples, report_losses
        )

    async def _wait_for_samples(self, wanted: int) -> None:
        """Wait for samples, without limit: if a stream dries up, the coordinator's stall timeout ends the run."""
        while (ready := self.feed.ready_at(wanted, self._node.now())) > self._node.now():
            if math.isfinite(ready):
                await self._node.sleep(max(ready - self._node.now(), _MIN_SLEEP_S))  # a clock may wake slightly early
                continue
            ready_latch = Latch()
            self.feed.call_when_ready(wanted, ready_latch.open)
            await ready_latch.wait(60.0)

    async def _wait_for_gifts(self, taken: int) -> None:
        """Wait for the gifts of this round; if the turn is cancelled meanwhile, its samples count as unused."""
        if not self._expected:
            return
        try:
            await self._gifts_complete.wait(float(self._settings.retry))
        except asyncio.CancelledError:
            self.feed.account.count_unused(taken)
            raise

    # --- injection -------------------------------------------------------------------------------------------------

    def receive_gift(self, gift: Gift) -> None:
        reason = refusal_reason(gift.payload.arrays, *self._sample_format)
        if reason is not None:
            fields = {"round": gift.round, "from": gift.donor, "reason": reason}
            self._node.record(Instant(self._node.name, "gift refused", self._node.now(), fields))
            return
        count = len(gift.payload.arrays[1])
        if not count:
            return
        if gift.round < self._round or gift.donor in self._gifts:
            self.feed.account.received += count
            self.feed.account.dropped += count
            return
        self._gifts[gift.donor] = gift
        self._check_gifts()

    def _expect_gifts(self, invite: Invite) -> None:
        self._round = invite.round
        for donor in [donor for donor, gift in self._gifts.items() if gift.round < invite.round]:
            late = len(self._gifts.pop(donor).payload.arrays[1])
            self.feed.account.received += late
            self.feed.account.dropped += late
        self._expected, self._gifts_complete = invite.gets, Latch()
        self._check_gifts()

    def _check_gifts(self) -> None:
        arrived = sum(len(gift.payload.arrays[1]) for gift in self._gifts.values() if gift.round == self._round)
        if arrived >= self._expected:
            self._gifts_complete.open()

    def _send_gifts(self, invite: Invite, ids: Indices) -> Indices:
        """Send other devices their samples; at least one sample stays."""
        for receiver, count in invite.gives:
            count = min(count, len(ids) - 1)
            if count > 0:
                arrays = pack_samples(self.feed.samples, ids[:count])
                payload = Payload(sum(array.nbytes for array in arrays), arrays)
                self._node.send(receiver, Gift(payload, round=invite.round, donor=self._node.name))
                now, fields = self._node.now(), {"round": invite.round, "bytes": payload.nbytes, "to": receiver}
                self._node.record(Span(self._node.name, "give", now, now, fields))
                self.feed.count_given(count)
                ids = ids[count:]
        return ids

    def _mix_gifts(self, ids: Indices) -> tuple[Indices, object]:
        gifts = self._pop_due_gifts()
        self._round += 1  # gifts of this round are late from now on
        if not gifts:
            return ids, self.feed.samples
        mixed = MixedSamples(self.feed.samples, [gift.payload.arrays for gift in gifts])
        self.feed.count_received(len(mixed.received_ids))
        return np.concatenate([ids, mixed.received_ids]), mixed

    def _pop_due_gifts(self) -> list[Gift]:
        """The gifts of this round, limited to the samples that were announced."""
        due: list[Gift] = []
        room = self._expected
        for donor in sorted(donor for donor, gift in self._gifts.items() if gift.round == self._round):
            gift = self._gifts.pop(donor)
            count = len(gift.payload.arrays[1])
            if count <= room:
                due.append(gift)
                room -= count
            else:
                self.feed.account.received += count
                self.feed.account.dropped += count
        return due

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
