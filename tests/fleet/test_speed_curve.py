from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from potluck.fleet.speed_curve import SpeedCurve
from potluck.fleet.traces import RandomWalkTrace
from potluck.units import Seconds

Interval = tuple[float, float]


@st.composite
def curves(draw: st.DrawFn) -> list[Interval]:
    """Intervals up to infinity, some of them with speed 0."""
    gaps = draw(st.lists(st.floats(0.01, 100), max_size=6))
    ends = [*itertools.accumulate(gaps), math.inf]
    levels = st.one_of(st.just(0.0), st.floats(0.01, 10))
    return [(end, draw(levels)) for end in ends]


def _done(intervals: list[Interval], start: float, end: float) -> float:
    """The work done from start to end: the integral of the speed."""
    total, before = 0.0, 0.0
    for until, level in intervals:
        low, high = max(before, start), min(until, end)
        if high > low:
            total += (high - low) * level
        before = until
    return total


@given(intervals=curves(), start=st.floats(0, 200), seconds=st.floats(1e-6, 500))
@example(intervals=[(1.0, 1.0), (5.0, 0.0), (math.inf, 1.0)], start=0.0, seconds=2.0)
@example(intervals=[(1.0, 1.0), (math.inf, 0.0)], start=0.0, seconds=2.0)
def test_work_ends_when_the_integral_of_the_speed_reaches_it(
    intervals: list[Interval], start: float, seconds: float
) -> None:
    end = SpeedCurve(iter(intervals)).finish_time(start, seconds)
    possible = _done(intervals, start, 1e12)
    assume(abs(possible - seconds) > 1e-6 * seconds)
    if math.isinf(end):
        assert possible < seconds
        return
    assert end >= start
    assert _done(intervals, start, end) == pytest.approx(seconds, rel=1e-9, abs=1e-9)
    assert _done(intervals, start, end - 1e-3) < seconds or seconds < 1e-2, "not later than it must"


@given(intervals=curves(), queries=st.lists(st.tuples(st.floats(0, 300), st.floats(0, 100)), max_size=8))
def test_sequential_queries_equal_independent_ones(
    intervals: list[Interval], queries: list[tuple[float, float]]
) -> None:
    curve = SpeedCurve(iter(intervals))
    for start, seconds in sorted(queries):
        assert curve.finish_time(start, seconds) == SpeedCurve(iter(intervals)).finish_time(start, seconds)
        assert curve.speed_at(start) == next(level for until, level in intervals if start < until)


@given(intervals=curves(), start=st.floats(0, 200), one=st.floats(0, 100), more=st.floats(0.001, 100))
def test_more_work_takes_longer(intervals: list[Interval], start: float, one: float, more: float) -> None:
    curve = SpeedCurve(iter(intervals))
    assert curve.finish_time(start, one) <= curve.finish_time(start, one + more)


@pytest.mark.parametrize(
    ("intervals", "start", "seconds", "end"),
    [
        ([(math.inf, 1.0)], 3.0, 2.0, 5.0),
        ([(math.inf, 0.5)], 3.0, 2.0, 7.0),
        ([(4.0, 1.0), (math.inf, 0.25)], 3.0, 2.0, 8.0),
        ([(4.0, 1.0), (10.0, 0.0), (math.inf, 2.0)], 3.0, 2.0, 10.5),
        ([(4.0, 0.0), (math.inf, 1.0)], 1.0, 2.0, 6.0),
        ([(4.0, 1.0), (math.inf, 0.5)], 2.0, 2.0, 4.0),
        ([(4.0, 1.0), (math.inf, 0.0)], 2.0, 2.0, 4.0),
        ([(4.0, 1.0), (math.inf, 0.0)], 2.0, 2.5, math.inf),
        ([(4.0, 1.0), (math.inf, 0.5)], 4.0, 1.0, 6.0),
        ([(math.inf, 1.0)], 3.0, 0.0, 3.0),
    ],
)
def test_finish_times_computed_by_hand(intervals: list[Interval], start: float, seconds: float, end: float) -> None:
    assert SpeedCurve(iter(intervals)).finish_time(start, seconds) == end


def test_an_endless_trace_is_read_no_further_than_needed() -> None:
    intervals_read = 0

    def endless() -> Iterator[Interval]:
        nonlocal intervals_read
        for number in itertools.count(1):
            intervals_read += 1
            yield float(number), 1.0

    curve = SpeedCurve(endless())
    assert curve.finish_time(0.0, 2.5) == 2.5
    assert intervals_read <= 4
    assert curve.finish_time(1000.5, 1.0) == 1001.5
    assert len(curve._upcoming) < 5, "past intervals are discarded"


def test_a_random_walk_is_integrated_over_many_intervals() -> None:
    walk = RandomWalkTrace(low=0.1, high=1.0, step=0.3, every=Seconds(1))
    intervals = list(itertools.islice(walk.level_intervals(np.random.default_rng(3)), 3000))
    end = SpeedCurve(walk.level_intervals(np.random.default_rng(3))).finish_time(0.5, 1000.0)
    assert _done(intervals, 0.5, end) == pytest.approx(1000.0, rel=1e-9)
