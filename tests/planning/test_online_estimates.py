"""Estimates converge, are stable under noise and follow a change within five iterations."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from potluck.errors import UserError
from potluck.planning.online_estimates import ChangeDetector, LinkEstimate

OVERHEAD, PER_BYTE = 0.01, 1e-8
SIZES = (1e6, 2.5e6, 6e6)


def train(
    link: LinkEstimate,
    iterations: int,
    overhead: float = OVERHEAD,
    per_byte: float = PER_BYTE,
    noise: float = 0.0,
    seed: int = 0,
) -> None:
    """Three transfers per iteration."""
    rng = random.Random(seed)
    for _ in range(iterations):
        link.observe_transfers([(size, (overhead + per_byte * size) * (1 + rng.gauss(0.0, noise))) for size in SIZES])


def off(estimate: float, truth: float) -> float:
    return abs(estimate / truth - 1)


@pytest.mark.parametrize("guess", [LinkEstimate(), LinkEstimate(0.5, 1e-6), LinkEstimate(0.001, 1e-9)])
def test_link_estimates_converge_from_any_initial_guess(guess: LinkEstimate) -> None:
    train(guess, 30)
    assert guess.seconds_per_byte is not None
    assert off(guess.overhead, OVERHEAD) < 0.01
    assert off(guess.seconds_per_byte, PER_BYTE) < 0.01


@pytest.mark.parametrize("factor", [0.1, 0.25, 0.5, 0.8, 1.3, 2.0, 4.0, 10.0])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_link_estimates_follow_a_bandwidth_change_in_five_iterations(factor: float, noise: float) -> None:
    for seed in range(20):
        link = LinkEstimate()
        train(link, 30, noise=noise, seed=seed)
        train(link, 5, per_byte=PER_BYTE * factor, noise=noise, seed=seed + 100)
        for size in SIZES:
            assert off(link.predicted_s(size), OVERHEAD + PER_BYTE * factor * size) < 0.1 + noise


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_link_estimates_follow_an_overhead_change(factor: float) -> None:
    link = LinkEstimate()
    train(link, 30, overhead=0.1)
    train(link, 5, overhead=0.1 * factor)
    for size in SIZES:
        assert off(link.predicted_s(size), 0.1 * factor + PER_BYTE * size) < 0.1


def test_link_estimates_are_stable_under_noise() -> None:
    link = LinkEstimate()
    train(link, 20, noise=0.05, seed=1)
    rates, overheads = [], []
    for seed in range(200):
        train(link, 1, noise=0.05, seed=seed)
        assert link.seconds_per_byte is not None
        rates.append(link.seconds_per_byte)
        overheads.append(link.overhead)
    assert off(statistics.fmean(rates), PER_BYTE) < 0.02
    assert statistics.stdev(rates) < 0.05 * PER_BYTE
    assert statistics.stdev(overheads) < 0.05 * (OVERHEAD + PER_BYTE * SIZES[0])


def test_equal_sizes_keep_the_overhead() -> None:
    link = LinkEstimate(overhead=OVERHEAD)
    for _ in range(500):
        link.observe_transfers([(1e6, 0.06)])
    assert math.isclose(link.overhead, OVERHEAD, rel_tol=1e-6)
    assert math.isclose(link.seconds_per_byte or 0.0, 5e-8, rel_tol=1e-6)
    link = LinkEstimate(overhead=1.0)  # more than a segment takes altogether
    for _ in range(50):
        link.observe_transfers([(1e6, 0.06)])
    assert math.isclose(link.predicted_s(1e6), 0.06, rel_tol=0.05)


def test_one_outlier_does_not_discard_the_history() -> None:
    link = LinkEstimate()
    train(link, 30)
    link.observe_transfers([(1e6, 5.0)])
    train(link, 1)
    for size in SIZES:
        assert off(link.predicted_s(size), OVERHEAD + PER_BYTE * size) < 0.05


@pytest.mark.parametrize("mbit", [2, 20, 100])
def test_a_token_bucket_does_not_mislead_the_estimate(mbit: float) -> None:
    """It lets the first 64 kB after a pause through at once; small segments see nothing of the link's rate."""
    rate, burst = mbit * 1e6 / 8, 64e3
    link = LinkEstimate(overhead=0.001, seconds_per_byte=1e-9)
    for _ in range(6):
        tokens, turn = burst, []
        for size in (2e3, 50e3, 80e3, 300e3, 1.2e6, 3.2e6):
            turn.append((size, 0.0003 + max(0.0, size - tokens) / rate))
            tokens = max(0.0, tokens - size)
        link.observe_transfers(turn)
    assert link.seconds_per_byte is not None
    assert off(link.seconds_per_byte, 1 / rate) < 0.05
    assert link.overhead < 0.002


@given(st.lists(st.tuples(st.floats(0, 1e15), st.floats(0, 1e300)), max_size=40))
@example([(1e-157, 92.0)])
@example([(1e6, 1e300), (1e6, 0.0)])
def test_link_estimates_are_never_negative_or_absurd(segments: list[tuple[float, float]]) -> None:
    link = LinkEstimate()
    for size, seconds in segments:
        link.observe_transfers([(size, seconds)])
    assert 0.0 <= link.overhead < math.inf
    assert link.seconds_per_byte is None or 0.0 <= link.seconds_per_byte < math.inf


def test_empty_segments_show_the_overhead_alone() -> None:
    link = LinkEstimate(0.5, 1e-6)
    link.observe_transfers([(0, 0.02)])
    assert (link.overhead, link.seconds_per_byte) == (0.02, 1e-6)


def test_a_change_takes_more_than_one_observation_on_one_side() -> None:
    detector = ChangeDetector()
    assert not detector.detect_change(1.0, 100.0)
    assert detector.detect_change(1.0, 100.0)
    assert not any(detector.detect_change(1.0, observed) for observed in (1.3, 0.75) * 20)
    assert not any(detector.detect_change(1.0, 1.09) for _ in range(100))


def test_bad_observations_are_refused() -> None:
    with pytest.raises(UserError, match="seconds is nan"):
        LinkEstimate().observe_transfers([(1, math.nan)])
    with pytest.raises(UserError, match="overhead is -1"):
        LinkEstimate(overhead=-1)
    with pytest.raises(UserError, match="memory"):
        LinkEstimate(memory=1.0)
