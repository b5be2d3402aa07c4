from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.loops.device_estimates import DeviceEstimates, LinkPrior
from potluck.loops.parts.batching import Batching, FixedBatching
from potluck.loops.parts.lr_scaling import CappedLrScaling, LinearLrScaling, LrScaling, NoLrScaling, SquareRootLrScaling
from potluck.loops.parts.stream_batching import (
    LineRateBatching,
    StreamBatching,
    StreamThroughput,
    split_batch_sizes,
    split_indices,
    turn_samples,
)
from potluck.settings import decode_settings
from potluck.units import Seconds


@pytest.mark.parametrize(("rate", "samples"), [(0.0, 8), (3.2, 8), (38.0, 38), (92.7, 92), (1024.0, 1024), (5e6, 1024)])
def test_the_batch_follows_the_stream_within_its_bounds(rate: float, samples: int) -> None:
    assert turn_samples(StreamBatching(), StreamThroughput(rate)) == samples


def test_the_window_is_how_many_seconds_of_the_stream_make_a_batch() -> None:
    assert turn_samples(StreamBatching(window=Seconds(0.5)), StreamThroughput(100.0)) == 50


def test_a_fixed_batch_is_the_same_on_any_stream() -> None:
    assert [turn_samples(FixedBatching(size=64), StreamThroughput(rate)) for rate in (1.0, 64.0, 900.0)] == [64, 64, 64]


@pytest.mark.parametrize(
    ("flow", "samples"),
    [
        (StreamThroughput(100.0, 400.0), 100),
        (StreamThroughput(100.0, 40.0), 40),
        (StreamThroughput(100.0, 40.0, 2.0), 40),
        (StreamThroughput(9000.0, 8000.0), 1024),
    ],
)
def test_a_slow_device_takes_only_what_it_can_train_on(flow: StreamThroughput, samples: int) -> None:
    assert turn_samples(LineRateBatching(), flow) == samples


@pytest.mark.parametrize(
    ("flow", "samples"),
    [
        (StreamThroughput(100.0, 400.0), 100),
        (StreamThroughput(100.0, 400.0, 0.1), 100),
        (StreamThroughput(100.0, 400.0, 3.0), 300),
        (StreamThroughput(100.0, 40.0, 2.0), 40),
        (StreamThroughput(100.0, 40.0, 5.0), 100),
        (StreamThroughput(900.0, 1800.0, 9.0), 1024),
    ],
)
def test_in_a_long_turn_it_takes_all_that_arrives_or_half_of_what_it_can_train_on(
    flow: StreamThroughput, samples: int
) -> None:
    assert turn_samples(LineRateBatching(turns=True), flow) == samples


@pytest.mark.parametrize("rate", [3.0, 30.0, 300.0, 3000.0])
def test_the_batch_size_converges_over_turns(rate: float) -> None:
    """Also where a stream outruns its device; transfers take 2 s here, and a sample 10 ms."""
    estimates, now = DeviceEstimates.from_prior(LinkPrior(1.0, 1.0)), 0.0
    for _ in range(60):
        estimates.begin_turn(now)
        now += 2.0 + 0.01 * turn_samples(
            LineRateBatching(turns=True, low=1, high=10**6), StreamThroughput(rate, 100.0, estimates.turn_s)
        )
    assert estimates.turn_s == pytest.approx(min(2 / (1 - min(rate / 100, 0.5)), 4.0), rel=0.05)


def test_waiting_for_data_does_not_count_as_turn_time() -> None:
    estimates = DeviceEstimates.from_prior(LinkPrior(1.0, 1.0))
    estimates.begin_turn(5.0)
    assert estimates.turn_s == 0.0
    estimates.waited_s = 3.0
    estimates.begin_turn(10.0)
    assert estimates.turn_s == 2.0


@given(samples=st.integers(1, 5000), cap=st.integers(1, 300))
def test_a_large_batch_is_cut_evenly_into_as_few_as_the_cap_allows(samples: int, cap: int) -> None:
    sizes = split_batch_sizes(StreamBatching(cap=cap), samples)
    assert sum(sizes) == samples
    assert max(sizes) <= cap
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == math.ceil(samples / cap)
    ids = np.arange(samples)
    assert np.concatenate(split_indices(ids, sizes)).tolist() == ids.tolist()
    assert tuple(map(len, split_indices(ids, sizes))) == sizes


def test_without_a_cap_a_turn_is_one_batch() -> None:
    assert split_batch_sizes(StreamBatching(), 700) == (700,)
    assert split_batch_sizes(FixedBatching(size=64), 64) == (64,)


def test_bounds_that_cross_are_refused() -> None:
    with pytest.raises(ValueError, match="`low` must not be above `high`"):
        StreamBatching(low=9, high=8)


@pytest.mark.parametrize("kind", ["stream", "line-rate"])
def test_batching_by_the_stream_is_a_part(kind: str) -> None:
    assert turn_samples(decode_settings({"kind": kind, "low": 2}, Batching), StreamThroughput(5.0)) == 5


@pytest.mark.parametrize(
    ("scaling", "factor"),
    [
        (NoLrScaling(), 1.0),
        (LinearLrScaling(), 8.0),
        (SquareRootLrScaling(), math.sqrt(8)),
        (CappedLrScaling(), 4.0),
        (LinearLrScaling(base=256), 2.0),
    ],
)
def test_the_learning_rate_follows_the_global_batch(scaling: LrScaling, factor: float) -> None:
    assert scaling.lr_factor(8192, 16, 0) == pytest.approx(factor)


def test_the_learning_rate_is_unchanged_at_the_base_batch() -> None:
    kinds = [LinearLrScaling(), SquareRootLrScaling(), CappedLrScaling(), NoLrScaling()]
    assert [scaling.lr_factor(64 * 16, 16, 0) for scaling in kinds] == [1.0] * 4


def test_a_large_factor_is_reached_in_even_steps() -> None:
    scaling = LinearLrScaling(warmup=4)
    assert [scaling.lr_factor(6 * 64, 1, round) for round in range(6)] == [2.0, 3.0, 4.0, 5.0, 6.0, 6.0]
    assert scaling.lr_factor(32, 1, 0) == 0.5, "a small one needs no warming up"
