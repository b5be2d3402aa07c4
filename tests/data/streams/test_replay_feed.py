from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck import seeds
from potluck.data import Samples
from potluck.data.buffers import BufferPolicy, PersistencePolicy, TruncationPolicy, ValuePolicy
from potluck.data.streams import ReplayFeed, ReplayOrder, StreamFeedState, StreamRate
from potluck.data.streams.stream_rates import ConstantRate
from potluck.fleet.traces import PiecewiseTrace
from potluck.units import Seconds

_SHARD = np.arange(100, 150)
_POLICIES: list[BufferPolicy] = [PersistencePolicy(), TruncationPolicy(), ValuePolicy()]


def _samples() -> Samples:
    return Samples(torch.arange(200.0).view(200, 1), torch.arange(200) % 5)


def _feed(rate: StreamRate | float, policy: BufferPolicy) -> ReplayFeed:
    rate = rate if isinstance(rate, StreamRate) else ConstantRate(per_second=rate)
    samples = _samples()
    order = ReplayOrder(_SHARD, lambda number: seeds.child_generator(0, "order", number))
    return ReplayFeed(rate.arrivals_of(0, 0), order, policy, samples, samples.labels)


@pytest.mark.parametrize("keeps", [True, False])
@given(rate=st.floats(1.0, 400.0), batch=st.integers(1, 200), turns=st.lists(st.floats(0.0, 5.0), min_size=1))
@settings(max_examples=50)
def test_the_waiting_time_follows_the_formula_of_the_paper(
    keeps: bool, rate: float, batch: int, turns: list[float]
) -> None:
    """q = S·t + leftover (none with truncation); the wait is (b − q)/S if positive, to within one sample."""
    feed = _feed(rate, PersistencePolicy() if keeps else TruncationPolicy())
    now, leftover, spent = 0.0, 0.0, 0.0
    for turn in turns:
        queue = rate * spent + leftover
        expected = max(0.0, (batch - queue) / rate)
        ready = feed.ready_at(batch, now)
        assert ready - now == pytest.approx(expected, abs=1.001 / rate)
        assert len(feed.take_samples(batch, ready)) == batch
        # The leftover is read back; otherwise fractions of a sample would accumulate over the turns.
        arrived = feed.account.streamed
        leftover = feed.account.buffered + (ready * rate - arrived) if keeps else ready * rate - arrived
        now, spent = ready + turn, turn


@pytest.mark.parametrize("policy", _POLICIES)
@given(looks=st.lists(st.tuples(st.floats(0.0, 9.0), st.integers(1, 120), st.booleans()), max_size=12))
@settings(max_examples=40)
def test_every_arrived_sample_is_accounted_for(policy: BufferPolicy, looks: list[tuple[float, int, bool]]) -> None:
    level = PiecewiseTrace(at=(Seconds(0), Seconds(3), Seconds(5)), levels=(1.0, 0.0, 2.0), repeat=Seconds(8))
    rate = ConstantRate(per_second=30.0, level=level)
    feed, arrivals, now = _feed(rate, policy), rate.arrivals_of(0, 0), 0.0
    for pause, want, crash in looks:
        now = feed.ready_at(want, now + pause)
        taken = feed.take_samples(want, now)
        assert len(taken) == want, "ready_at says when so many are there"
        assert np.isin(taken, _SHARD).all()
        if crash:
            feed.drop_all(now)
        feed.account.check_balance()
        assert feed.account.streamed == arrivals.arrived_by(now)


def test_a_batch_is_not_ready_a_moment_too_early() -> None:
    feed = _feed(16.0, TruncationPolicy())
    ready = feed.ready_at(24, 0.25)
    assert ready == 1.5
    assert len(feed.take_samples(24, np.nextafter(1.5, 0))) == 23


def test_each_epoch_delivers_every_sample_once_in_a_new_order() -> None:
    feed = _feed(50.0, PersistencePolicy())
    first, second = (feed.take_samples(50, feed.ready_at(50, 0.0)).tolist() for _ in range(2))
    first_again = _feed(50.0, PersistencePolicy()).take_samples(50, 1.0).tolist()
    assert sorted(first) == sorted(second) == _SHARD.tolist()
    assert first != second
    assert first == first_again


def test_a_batch_may_span_epochs() -> None:
    feed = _feed(50.0, PersistencePolicy())
    assert Counter(feed.take_samples(500, feed.ready_at(500, 0.0)).tolist()) == Counter(
        dict.fromkeys(_SHARD.tolist(), 10)
    )


@pytest.mark.parametrize("policy", _POLICIES)
def test_a_restored_feed_continues_identically(policy: BufferPolicy) -> None:
    feed = _feed(40.0, policy)
    feed.take_samples(20, feed.ready_at(20, 1.7))
    feed.update_class_worth({0: 2.0})
    saved = msgspec.json.encode(feed.save_state())
    restored = _feed(40.0, policy)
    restored.restore_state(msgspec.json.decode(saved, type=StreamFeedState))
    for now in (2.0, 2.1, 5.0):
        ready = feed.ready_at(30, now)
        assert restored.ready_at(30, now) == ready
        assert restored.take_samples(30, ready).tolist() == feed.take_samples(30, ready).tolist()
        assert restored.save_state() == feed.save_state()


def test_a_saved_state_does_not_change_afterwards() -> None:
    feed = _feed(40.0, PersistencePolicy())
    feed.take_samples(5, 1.0)
    state = feed.save_state()
    feed.take_samples(5, 3.0)
    assert state.held.account.trained == 5


def test_truncation_needs_eight_hundred_times_less_memory() -> None:
    peaks = []
    for policy in (PersistencePolicy(), TruncationPolicy()):
        feed, now = _feed(256.0, policy), 0.0
        for _ in range(1500):
            now = feed.ready_at(64, now)
            feed.take_samples(64, now)
            now += 1.2
        peaks.append(feed.account.peak)
    assert peaks[0] / peaks[1] > 800


def test_copies_for_other_devices_are_accounted_for() -> None:
    donor, receiver = _feed(32.0, TruncationPolicy()), _feed(32.0, TruncationPolicy())
    for feed in (donor, receiver):
        feed.take_samples(32, feed.ready_at(32, 0.0))
    donor.count_given(8)
    receiver.count_received(8)
    total = donor.account + receiver.account
    total.check_balance()
    assert (donor.account.trained, receiver.account.trained) == (32, 40), "the donor trains on them, too"
    assert total.shared == total.received == 8
