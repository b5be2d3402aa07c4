from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.loops.parts.barrier import AllBarrier, Barrier, BufferedBarrier, QuorumBarrier, RoundStatus, late_after_s

BARRIERS: st.SearchStrategy[Barrier] = st.one_of(
    st.just(AllBarrier()),
    st.builds(QuorumBarrier, share=st.floats(0.01, 1.0), tolerance=st.floats(0, 9)),
    st.builds(BufferedBarrier, size=st.integers(1, 9)),
)
DURATIONS = st.lists(st.floats(0.1, 100), max_size=9)


def _progress(
    arrived: int, working: int, now: float = 0.0, started: float = 0.0, durations: tuple[float, ...] = ()
) -> RoundStatus:
    return RoundStatus(now, started, arrived, working, durations)


@given(barrier=BARRIERS, arrived=st.integers(1, 99), now=st.floats(0, 1e6), durations=DURATIONS)
def test_the_round_closes_when_no_device_is_awaited(
    barrier: Barrier, arrived: int, now: float, durations: list[float]
) -> None:
    assert barrier.should_close(RoundStatus(now, 0.0, arrived, 0, durations))


@given(barrier=BARRIERS, working=st.integers(0, 99), now=st.floats(0, 1e6), durations=DURATIONS)
def test_without_an_update_the_round_stays_open(
    barrier: Barrier, working: int, now: float, durations: list[float]
) -> None:
    assert not barrier.should_close(RoundStatus(now, 0.0, 0, working, durations))


@given(barrier=BARRIERS, arrived=st.integers(1, 20), working=st.integers(1, 20), durations=DURATIONS)
def test_one_more_update_never_keeps_a_round_open(
    barrier: Barrier, arrived: int, working: int, durations: list[float]
) -> None:
    before = RoundStatus(50.0, 0.0, arrived, working, durations)
    after = RoundStatus(50.0, 0.0, arrived + 1, working - 1, durations)
    assert barrier.should_close(after) or not barrier.should_close(before)


@given(barrier=BARRIERS, arrived=st.integers(1, 20), working=st.integers(1, 20), durations=DURATIONS)
def test_a_barrier_says_when_to_check_again(
    barrier: Barrier, arrived: int, working: int, durations: list[float]
) -> None:
    """If time alone opens it, then at the time it names, and not before."""
    status = RoundStatus(0.0, 0.0, arrived, working, durations)
    next_check_at = barrier.next_check_at(status)
    if not barrier.should_close(status) and barrier.should_close(RoundStatus(1e9, 0.0, arrived, working, durations)):
        assert barrier.should_close(RoundStatus(next_check_at, 0.0, arrived, working, durations))
        assert not barrier.should_close(
            RoundStatus(math.nextafter(next_check_at, 0.0), 0.0, arrived, working, durations)
        )


def test_all_waits_for_the_last() -> None:
    assert not AllBarrier().should_close(_progress(9, 1, now=1e9))
    assert not AllBarrier.carries_over


def test_a_quorum_closes_when_a_fraction_has_arrived_and_the_rest_is_late() -> None:
    durations = (10.0, 10.0, 12.0)  # median 10, spread 0.5 at least: late after 10 + 3 · 0.5
    quorum = QuorumBarrier(share=0.8, tolerance=3.0)
    assert not quorum.should_close(_progress(4, 1, now=111.4, started=100.0, durations=durations))
    assert quorum.should_close(_progress(4, 1, now=111.5, started=100.0, durations=durations))
    assert not quorum.should_close(_progress(3, 2, now=1e6, started=100.0, durations=durations))


@pytest.mark.parametrize("devices", [10, 20, 25, 50, 100])
@pytest.mark.parametrize("percent", [5, 28, 50, 55, 56, 80, 100])
def test_a_quorum_needs_exactly_its_fraction(devices: int, percent: int) -> None:
    """0.55 · 100 is 55.000000000000007, yet 55 of 100 are enough."""
    needed = -(-percent * devices // 100)
    quorum = QuorumBarrier(share=percent / 100)
    opened = [
        quorum.should_close(_progress(n, devices - n, 1e6, durations=(1.0, 1.0, 1.0))) for n in range(devices + 1)
    ]
    assert opened == [n >= needed for n in range(devices + 1)]


def test_no_device_is_late_before_three_updates_are_known() -> None:
    assert not QuorumBarrier().should_close(_progress(99, 1, now=1e9, durations=(1.0, 1.0)))
    assert math.isinf(QuorumBarrier().next_check_at(_progress(99, 1, durations=(1.0, 1.0))))


def test_a_buffered_round_closes_when_the_buffer_is_full() -> None:
    assert not BufferedBarrier(size=4).should_close(_progress(3, 90))
    assert BufferedBarrier(size=4).should_close(_progress(4, 90))
    assert BufferedBarrier.carries_over


@given(durations=st.lists(st.floats(0.1, 1e4), min_size=3, max_size=30), tolerance=st.floats(0, 9))
def test_a_deadline_is_past_the_median_whatever_the_order(durations: list[float], tolerance: float) -> None:
    late = late_after_s(durations, tolerance)
    assert late >= statistics.median(durations)
    assert late == late_after_s(sorted(durations), tolerance)
    assert late_after_s([2 * duration for duration in durations], tolerance) == pytest.approx(2 * late)


def test_one_straggler_does_not_move_the_deadline() -> None:
    usual = [10.0, 11.0, 9.0, 10.5, 9.5, 10.2, 9.8]
    assert late_after_s([*usual, 1e6], 3.0) < 15.0
