from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from potluck import seeds
from potluck.loops.parts.batching import FixedBatching, _epoch_cuts
from potluck.model.local_training import LocalSgd


def _rng(*name: object) -> np.random.Generator:
    return seeds.child_generator(0, "device", *name)


def _shard(samples: int) -> np.ndarray:
    return np.arange(samples) * 7 + 3


@given(samples=st.integers(1, 300), size=st.integers(1, 70))
def test_the_batches_of_an_epoch_are_counted_without_listing_them(samples: int, size: int) -> None:
    batching = FixedBatching(size=size)
    assert batching.batches_per_epoch(samples) == len(_epoch_cuts(samples, min(size, samples))) + 1
    assert batching.batches_per_epoch(2**53) >= 2**53 // size - 1, "a device may claim to hold any number of samples"


@settings(deadline=None)
@given(samples=st.integers(1, 200), size=st.integers(1, 70), passes=st.integers(1, 20))
def test_as_many_batches_as_asked_for_of_samples_that_the_device_holds(samples: int, size: int, passes: int) -> None:
    shard = _shard(samples)
    batches = FixedBatching(size=size).choose_batches(shard, 0, passes, _rng)
    assert len(batches) == passes
    assert all(np.isin(batch, shard).all() for batch in batches)
    assert all(len(set(batch.tolist())) == len(batch) for batch in batches)
    longest = size + 1 if size > 1 else 1
    assert all(1 <= len(batch) <= longest for batch in batches)


@settings(deadline=None)
@given(samples=st.integers(2, 200), size=st.integers(2, 70))
def test_no_batch_of_one_where_there_are_more(samples: int, size: int) -> None:
    """Batch-norm cannot train on one sample."""
    batches = FixedBatching(size=size).choose_batches(_shard(samples), 0, 9, _rng)
    assert min(len(batch) for batch in batches) >= 2


@settings(deadline=None)
@given(samples=st.integers(1, 200), size=st.integers(1, 70), epochs=st.integers(1, 3))
@example(samples=64, size=32, epochs=2)
@example(samples=33, size=32, epochs=2)
def test_an_epoch_takes_every_sample_once(samples: int, size: int, epochs: int) -> None:
    batching = FixedBatching(size=size)
    passes = LocalSgd(epochs=epochs).batches_per_turn(batching.batches_per_epoch(samples))
    used = Counter(np.concatenate(batching.choose_batches(_shard(samples), 0, passes, _rng)).tolist())
    assert used == Counter(dict.fromkeys(_shard(samples).tolist(), epochs))


def test_an_epoch_takes_every_sample_once_where_one_is_left_over() -> None:
    """33 samples in batches of 32 are one batch of 33; a second batch would be a second epoch."""
    batching = FixedBatching(size=32)
    passes = LocalSgd(epochs=1).batches_per_turn(batching.batches_per_epoch(33))
    (used,) = batching.choose_batches(_shard(33), 0, passes, _rng)
    assert sorted(used.tolist()) == _shard(33).tolist()


@pytest.mark.parametrize(
    ("samples", "size", "batches"),
    [
        (100, 32, 4),
        (96, 32, 3),
        (5, 5, 1),
        (1000, 10, 100),
        (5, 32, 1),
        (1, 32, 1),
        (3, 1, 3),
        (33, 32, 1),
        (34, 32, 2),
        (65, 32, 2),
    ],
)
def test_how_many_batches_an_epoch_has(samples: int, size: int, batches: int) -> None:
    assert FixedBatching(size=size).batches_per_epoch(samples) == batches
    assert len(FixedBatching(size=size).turn_batch_sizes(samples, batches)) == batches
    assert sum(FixedBatching(size=size).turn_batch_sizes(samples, batches)) == samples


@settings(deadline=None)
@given(samples=st.integers(1, 200), size=st.integers(1, 70))
def test_single_batches_run_through_the_data_in_a_new_order_each_time(samples: int, size: int) -> None:
    batching, shard = FixedBatching(size=size), _shard(samples)
    per_epoch = max(1, samples // min(size, samples))
    epochs = []
    for epoch in range(2):
        turns = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        batches = [batching.choose_batches(shard, turn, None, _rng) for turn in turns]
        assert all(len(batch) == 1 and len(batch[0]) == min(size, samples) for batch in batches)
        epochs.append(np.concatenate([batch[0] for batch in batches]))
    for used in epochs:
        assert len(set(used.tolist())) == len(used), "no sample twice in an epoch"
    if samples >= 20:
        assert not np.array_equal(epochs[0], epochs[1])


@settings(deadline=None)
@given(samples=st.integers(1, 99), size=st.integers(1, 40), count=st.integers(0, 9))
def test_a_turn_can_be_taken_again(samples: int, size: int, count: int) -> None:
    """What a turn uses depends on its number only, so a resumed or repeated turn is the same."""
    batching, shard = FixedBatching(size=size), _shard(samples)
    for passes in (None, 3):
        first, second = (batching.choose_batches(shard, count, passes, _rng) for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_turns_differ() -> None:
    first, second = (FixedBatching(size=8).choose_batches(_shard(64), count, 4, _rng) for count in (0, 1))
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))


def test_a_device_with_less_uses_all_it_has() -> None:
    assert FixedBatching(size=32).batch_size_for(5) == 5
    (batch,) = FixedBatching(size=32).choose_batches(_shard(5), 0, None, _rng)
    assert sorted(batch.tolist()) == _shard(5).tolist()


@settings(deadline=None)
@given(samples=st.integers(1, 200), size=st.integers(1, 70), passes=st.integers(1, 20))
def test_a_short_turn_is_the_beginning_of_a_long_one(samples: int, size: int, passes: int) -> None:
    batching = FixedBatching(size=size)
    short, long = (batching.choose_batches(_shard(samples), 0, count, _rng) for count in (passes, 2 * passes + 3))
    assert [batch.tolist() for batch in short] == [batch.tolist() for batch in long[:passes]]
