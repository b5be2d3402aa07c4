from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.data.streams.stream_arrivals import StreamArrivals
from potluck.data.streams.stream_rates import ConstantRate, ScadlesRate, StreamRate, TraceRate, UniformRate
from potluck.fleet.traces import PiecewiseTrace, RandomWalkTrace
from potluck.settings import decode_settings
from potluck.units import Seconds

_rates = st.one_of(st.just(0.0), st.floats(0.01, 5000.0))
_lasting = st.lists(st.tuples(st.floats(0.01, 500.0), _rates), max_size=6)


def _arrivals(intervals: list[tuple[float, float]], last: float) -> StreamArrivals:
    ends = itertools.accumulate(seconds for seconds, _ in intervals)
    return StreamArrivals([*zip(ends, (rate for _, rate in intervals), strict=True), (math.inf, last)])


@given(intervals=_lasting, last=_rates, count=st.integers(1, 100_000))
def test_the_nth_sample_arrives_exactly_at_its_time(
    intervals: list[tuple[float, float]], last: float, count: int
) -> None:
    arrivals = _arrivals(intervals, last)
    moment = arrivals.arrival_time(count)
    if moment < math.inf:
        assert arrivals.arrived_by(moment) == count
        assert arrivals.arrived_by(math.nextafter(moment, 0)) < count


@given(intervals=_lasting, last=_rates, now=st.floats(0.0, 5000.0))
def test_arrived_samples_are_in_the_past_and_the_next_in_the_future(
    intervals: list[tuple[float, float]], last: float, now: float
) -> None:
    arrivals = _arrivals(intervals, last)
    count = arrivals.arrived_by(now)
    assert arrivals.arrival_time(count) <= now < arrivals.arrival_time(count + 1)


@given(intervals=_lasting, last=_rates, now=st.floats(0.0, 5000.0))
def test_the_count_is_the_integral_of_the_rate(intervals: list[tuple[float, float]], last: float, now: float) -> None:
    start, integral = 0.0, 0.0
    for seconds, rate in [*intervals, (math.inf, last)]:
        integral += rate * max(0.0, min(now, start + seconds) - start) if rate else 0.0
        start += seconds
    assert _arrivals(intervals, last).arrived_by(now) == pytest.approx(integral, abs=1 + 1e-6)


def test_the_tenth_sample_at_ten_per_second_arrives_after_one_second() -> None:
    """0.1 has no exact float, and floor(0.1 · 3 · 10) would be 3 only by luck."""
    arrivals = ConstantRate(per_second=10).arrivals_of(0, 0)
    assert [arrivals.arrived_by(tenths / 10) for tenths in range(11)] == list(range(11))


def test_a_stream_whose_rate_is_zero_delivers_nothing_more() -> None:
    arrivals = StreamArrivals([(2.0, 3.0), (math.inf, 0.0)])
    assert arrivals.arrival_time(6) == 2.0
    assert arrivals.arrival_time(7) == math.inf
    assert arrivals.arrived_by(1e9) == 6


def test_a_late_sample_of_a_fast_stream_is_located_quickly() -> None:
    arrivals = ConstantRate(per_second=300).arrivals_of(0, 0)
    assert arrivals.arrived_by(1e7) == 3_000_000_000
    assert arrivals.arrival_time(3_000_000_000) == 1e7


def test_the_rate_follows_its_level() -> None:
    level = PiecewiseTrace(at=(Seconds(0), Seconds(10)), levels=(1.0, 0.5), repeat=Seconds(20))
    arrivals = ConstantRate(per_second=100, level=level).arrivals_of(0, 0)
    assert [arrivals.rate_at(now) for now in (0.0, 9.9, 10.0, 19.9, 20.0, 30.0)] == [100, 100, 50, 50, 100, 50]
    assert arrivals.arrived_by(40.0) == 3000


def test_a_trace_gives_samples_per_second() -> None:
    rate = decode_settings(
        {"kind": "trace", "level": {"kind": "piecewise", "at": ["0 s", "1 s"], "levels": [40, 8]}}, StreamRate
    )
    assert isinstance(rate, TraceRate)
    assert rate.arrivals_of(0, 0).arrived_by(2.0) == 48


def test_each_device_draws_its_own_reproducible_rate() -> None:
    rate = UniformRate(mean=300, deviation=112)
    rates = [rate.nominal_rate(index, 7) for index in range(200)]
    assert rates == [rate.nominal_rate(index, 7) for index in range(200)]
    assert len(set(rates)) == 200
    assert sum(rates) / 200 == pytest.approx(300, abs=25)
    assert min(rates) > 300 - 1.74 * 112
    assert max(rates) < 300 + 1.74 * 112


def test_no_device_is_slower_than_the_minimum() -> None:
    assert min(UniformRate(mean=38, deviation=24, least=9).nominal_rate(index, 0) for index in range(300)) == 9


def test_each_device_has_its_own_random_walk() -> None:
    walk = ConstantRate(per_second=100, level=RandomWalkTrace())
    assert walk.arrivals_of(0, 3).arrived_by(100.0) != walk.arrivals_of(1, 3).arrived_by(100.0)
    assert walk.arrivals_of(1, 3).arrived_by(100.0) == walk.arrivals_of(1, 3).arrived_by(100.0)


@pytest.mark.parametrize(
    ("name", "first", "mean", "deviation"),
    [("S1", [50, 38, 12], 38, 24), ("S2", [], 300, 112), ("S1'", [92, 38, 62], 64, 24), ("S2'", [270, 218], 256, 28)],
)
def test_the_published_rate_sets_match_the_paper(name: str, first: list[float], mean: float, deviation: float) -> None:
    rate = decode_settings({"kind": "scadles", "set": name}, StreamRate)
    assert isinstance(rate, ScadlesRate)
    rates = [rate.nominal_rate(index, 0) for index in range(400)]
    assert rates[: len(first)] == first
    assert sum(rates) / 400 == pytest.approx(mean, abs=0.2 * deviation)
    assert min(rates) >= {"S1": 12, "S1'": 22, "S2'": 218}.get(name, 8), "no draw is slower than the authors' slowest"
