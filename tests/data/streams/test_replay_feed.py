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
from potluck.data.buffers import Buffer, Persistence, Truncation, Value
from potluck.data.streams import FeedState, Order, Rate, ReplayFeed
from potluck.data.streams.rates import Same
from potluck.fleet.traces import Piecewise
from potluck.units import Seconds

_SHARD = np.arange(100, 150)
_POLICIES: list[Buffer] = [Persistence(), Truncation(), Value()]


def _samples() -> Samples:
    return Samples(torch.arange(200.0).view(200, 1), torch.arange(200) % 5)


def _feed(rate: Rate | float, policy: Buffer) -> ReplayFeed:
    rate = rate if isinstance(rate, Rate) else Same(per_second=rate)
    samples = _samples()
    order = Order(_SHARD, lambda number: seeds.generator(0, "order", number))
    return ReplayFeed(rate.arrivals(0, 0), order, policy, samples, samples.labels)


@pytest.mark.parametrize("keeps", [True, False])
@given(rate=st.floats(1.0, 400.0), batch=st.integers(1, 200), turns=st.lists(st.floats(0.0, 5.0), min_size=1))
@settings(max_examples=50)
def test_a_device_waits_as_long_as_the_paper_says(keeps: bool, rate: float, batch: int, turns: list[float]) -> None:
    """q = S·t + leftover (none with truncation); wait (b − q)/S where that is positive; to within one sample."""
    feed = _feed(rate, Persistence() if keeps else Truncation())
    now, leftover, spent = 0.0, 0.0, 0.0
    for turn in turns:
        queue = rate * spent + leftover
        expected = max(0.0, (batch - queue) / rate)
        ready = feed.ready_at(batch, now)
        assert ready - now == pytest.approx(expected, abs=1.001 / rate)
        assert len(feed.take(batch, ready)) == batch
        # What is left is read off, else a sample's fraction would add up over the turns.
        arrived = feed.account.streamed
        leftover = feed.account.buffered + (ready * rate - arrived) if keeps else ready * rate - arrived
        now, spent = ready + turn, turn


@pytest.mark.parametrize("policy", _POLICIES)
@given(looks=st.lists(st.tuples(st.floats(0.0, 9.0), st.integers(1, 120), st.booleans()), max_size=12))
@settings(max_examples=40)
def test_all_that_streamed_in_is_accounted_for(policy: Buffer, looks: list[tuple[float, int, bool]]) -> None:
    level = Piecewise(at=(Seconds(0), Seconds(3), Seconds(5)), levels=(1.0, 0.0, 2.0), repeat=Seconds(8))
    rate = Same(per_second=30.0, level=level)
    feed, arrivals, now = _feed(rate, policy), rate.arrivals(0, 0), 0.0
    for pause, want, crash in looks:
        now = feed.ready_at(want, now + pause)
        taken = feed.take(want, now)
        assert len(taken) == want, "ready_at says when so many are there"
        assert np.isin(taken, _SHARD).all()
        if crash:
            feed.forget(now)
        feed.account.check()
        assert feed.account.streamed == arrivals.arrived(now)


def test_it_is_not_ready_a_moment_before() -> None:
    feed = _feed(16.0, Truncation())
    ready = feed.ready_at(24, 0.25)
    assert ready == 1.5
    assert len(feed.take(24, np.nextafter(1.5, 0))) == 23


def test_each_pass_brings_every_sample_once_in_another_order() -> None:
    feed = _feed(50.0, Persistence())
    first, second = (feed.take(50, feed.ready_at(50, 0.0)).tolist() for _ in range(2))
    first_again = _feed(50.0, Persistence()).take(50, 1.0).tolist()
    assert sorted(first) == sorted(second) == _SHARD.tolist()
    assert first != second
    assert first == first_again


def test_a_batch_may_span_passes() -> None:
    feed = _feed(50.0, Persistence())
    assert Counter(feed.take(500, feed.ready_at(500, 0.0)).tolist()) == Counter(dict.fromkeys(_SHARD.tolist(), 10))


@pytest.mark.parametrize("policy", _POLICIES)
def test_a_saved_feed_goes_on_bit_for_bit(policy: Buffer) -> None:
    feed = _feed(40.0, policy)
    feed.take(20, feed.ready_at(20, 1.7))
    feed.learned({0: 2.0})
    saved = msgspec.json.encode(feed.state())
    restored = _feed(40.0, policy)
    restored.restore(msgspec.json.decode(saved, type=FeedState))
    for now in (2.0, 2.1, 5.0):
        ready = feed.ready_at(30, now)
        assert restored.ready_at(30, now) == ready
        assert restored.take(30, ready).tolist() == feed.take(30, ready).tolist()
        assert restored.state() == feed.state()


def test_what_is_saved_does_not_change_afterwards() -> None:
    feed = _feed(40.0, Persistence())
    feed.take(5, 1.0)
    state = feed.state()
    feed.take(5, 3.0)
    assert state.held.account.trained == 5


def test_truncation_needs_eight_hundred_times_less_room() -> None:
    peaks = []
    for policy in (Persistence(), Truncation()):
        feed, now = _feed(256.0, policy), 0.0
        for _ in range(1500):
            now = feed.ready_at(64, now)
            feed.take(64, now)
            now += 1.2
        peaks.append(feed.account.peak)
    assert peaks[0] / peaks[1] > 800


def test_samples_that_move_between_devices_stay_accounted_for() -> None:
    donor, receiver = _feed(32.0, Truncation()), _feed(32.0, Truncation())
    for feed in (donor, receiver):
        feed.take(32, feed.ready_at(32, 0.0))
    donor.gave(8)
    receiver.got(8)
    total = donor.account + receiver.account
    total.check()
    assert (donor.account.trained, receiver.account.trained) == (24, 40)
    assert total.shared == total.received == 8
