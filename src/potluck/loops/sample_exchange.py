"""A device's side of data injection: sends copies of its batch's samples to others, and takes theirs for its own batch.

    coordinator ──Give──▶ donor ──Gift──▶ receiver        the receiver's Invite says how many donors there are

A receiver waits for the gifts of its turn as long as for any request; what arrives later is dropped and counted.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt

from potluck.data.streams.injected_samples import MixedSamples, pack_samples
from potluck.data.streams.stream_feed import StreamFeed
from potluck.data.streams.stream_records import SampleSpec
from potluck.journal import Instant, Span
from potluck.loops.messages import Gift, GiftOrder, Give, Invite
from potluck.loops.node import Latch, Node
from potluck.payload import Payload

__all__ = ["SampleExchange"]

Indices = npt.NDArray[np.int64]


class SampleExchange:
    """What a device gives to others and is given by them; its samples stay where they are, copies travel."""

    def __init__(self, node: Node, feed: StreamFeed, sample_spec: SampleSpec | None, wait_s: float) -> None:
        self._node = node
        self._feed = feed
        self._sample_spec = sample_spec  # of samples from other devices; None where only time is modelled
        self._wait_s = wait_s
        self._batch_turn = -1  # the turn whose batch was taken last
        self._batch = np.zeros(0, np.int64)
        self._early_gives: list[Give] = []  # for a batch that is still to be taken
        self._turn = 0  # gifts for an earlier one are late
        self._gifts: dict[str, Gift] = {}  # by donor
        self._donors = 0
        self._room = 0  # samples that may still come
        self._complete = Latch()

    # --- giving ----------------------------------------------------------------------------------------------------

    def handle_give(self, give: Give) -> None:
        """Send the samples that other devices are to get, now or once their batch is taken."""
        if give.turn == self._batch_turn:
            self._send_gifts(give)
        elif give.turn > self._batch_turn:
            self._early_gives.append(give)

    def offer_batch(self, turn: int, ids: Indices) -> None:
        """The batch of a turn was taken; send what others are to get of it."""
        self._batch_turn, self._batch = turn, ids
        early, self._early_gives = self._early_gives, []
        for give in early:
            self.handle_give(give)

    def _send_gifts(self, give: Give) -> None:
        node = self._node
        for order in give.orders:
            arrays = pack_samples(self._feed.samples, self._ordered_samples(order, give.by_class))
            payload, count = Payload(sum(array.nbytes for array in arrays), arrays), len(arrays[-1])
            node.send(order.receiver, Gift(payload, turn=order.turn, donor=node.name))
            self._feed.count_given(count)
            if count:
                fields = {"turn": order.turn, "bytes": payload.nbytes, "to": order.receiver}
                node.record(Span(node.name, "give", node.now(), node.now(), fields))

    def _ordered_samples(self, order: GiftOrder, by_class: bool) -> Indices:
        """The first samples of the batch, of each class in question if it goes by class; fewer if there are no more."""
        if not by_class:
            return self._batch[: sum(count for _, count in order.amounts)]
        labels = np.asarray(pack_samples(self._feed.samples, self._batch)[-1])
        return np.concatenate([self._batch[labels == label][:count] for label, count in order.amounts])

    # --- receiving -------------------------------------------------------------------------------------------------

    def expect_gifts(self, invite: Invite) -> None:
        """A turn begins."""
        self._turn, self._donors, self._room = invite.turn, invite.donors, invite.gets
        self._complete = Latch()
        for donor in [donor for donor, gift in self._gifts.items() if gift.turn < invite.turn]:
            self._drop_gift(self._gifts.pop(donor))
        self._check_complete()

    def receive_gift(self, gift: Gift) -> None:
        """Take samples from another device; of several from one donor, those for the latest turn."""
        reason = None if self._sample_spec is None else self._sample_spec.batch_refusal(gift.payload.arrays)
        if reason is not None:
            fields = {"turn": gift.turn, "from": gift.donor, "reason": reason}
            self._node.record(Instant(self._node.name, "gift refused", self._node.now(), fields))
            return
        held = self._gifts.get(gift.donor)
        if gift.turn < self._turn or (held is not None and held.turn >= gift.turn):
            self._drop_gift(gift)
            return
        if held is not None:
            self._drop_gift(held)
        self._gifts[gift.donor] = gift
        self._check_complete()

    async def wait_for_gifts(self) -> None:
        """Wait for the gifts of this turn; if it is cancelled meanwhile, its samples count as unused."""
        if not self._donors:
            return
        try:
            await self._complete.wait(self._wait_s)
        except asyncio.CancelledError:
            self._feed.account.count_unused(len(self._batch))
            raise

    def mix_gifts(self) -> tuple[Indices, Any, int]:
        """The turn's samples: the ids of its own and of received ones, what they refer to, and the number received."""
        gifts = self._pop_due_gifts()
        self._turn += 1  # gifts for this turn are late from now on
        if not gifts:
            return self._batch, self._feed.samples, 0
        assert self._sample_spec is not None, "samples are only exchanged where there are any"
        mixed = MixedSamples(self._feed.samples, [gift.payload.arrays for gift in gifts], self._sample_spec)
        self._feed.count_received(len(mixed.received_ids))
        return np.concatenate([self._batch, mixed.received_ids]), mixed, len(mixed.received_ids)

    def _pop_due_gifts(self) -> list[Gift]:
        """The gifts for this turn that have samples, up to the number that was announced."""
        due: list[Gift] = []
        for donor in sorted(donor for donor, gift in self._gifts.items() if gift.turn == self._turn):
            gift = self._gifts.pop(donor)
            count = _sample_count(gift)
            if count > self._room:
                self._drop_gift(gift)
            elif count:
                due.append(gift)
                self._room -= count
        return due

    def _check_complete(self) -> None:
        if sum(gift.turn == self._turn for gift in self._gifts.values()) >= self._donors:
            self._complete.open()

    def _drop_gift(self, gift: Gift) -> None:
        self._feed.account.received += _sample_count(gift)
        self._feed.account.dropped += _sample_count(gift)


def _sample_count(gift: Gift) -> int:
    return len(gift.payload.arrays[-1])
