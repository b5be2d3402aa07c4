from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.data.streams.arrivals import Arrivals
from potluck.data.streams.rates import Published, Rate, Same, Traced, Uniform
from potluck.fleet.traces import Piecewise, RandomWalk
from potluck.settings import decode
from potluck.units import Seconds

_rates = st.one_of(st.just(0.0), st.floats(0.01, 5000.0))
_lasting = st.lists(st.tuples(st.floats(0.01, 500.0), _rates), max_size=6)


def _arrivals(lasting: list[tuple[float, float]], last: float) -> Arrivals:
    ends = itertools.accumulate(seconds for seconds, _ in lasting)
    return Arrivals([*zip(ends, (rate for _, rate in lasting), strict=True), (math.inf, last)])


@given(lasting=_lasting, last=_rates, count=st.integers(1, 100_000))
def test_the_count_is_there_at_its_moment_and_not_a_moment_before(
    lasting: list[tuple[float, float]], last: float, count: int
) -> None:
    arrivals = _arrivals(lasting, last)
    moment = arrivals.when(count)
    if moment < math.inf:
        assert arrivals.arrived(moment) == count
        assert arrivals.arrived(math.nextafter(moment, 0)) < count


@given(lasting=_lasting, last=_rates, now=st.floats(0.0, 5000.0))
def test_what_has_arrived_arrived_by_now_and_the_next_comes_later(
    lasting: list[tuple[float, float]], last: float, now: float
) -> None:
    arrivals = _arrivals(lasting, last)
    count = arrivals.arrived(now)
    assert arrivals.when(count) <= now < arrivals.when(count + 1)


@given(lasting=_lasting, last=_rates, now=st.floats(0.0, 5000.0))
def test_the_count_is_the_integral_of_the_rate(lasting: list[tuple[float, float]], last: float, now: float) -> None:
    start, integral = 0.0, 0.0
    for seconds, rate in [*lasting, (math.inf, last)]:
        integral += rate * max(0.0, min(now, start + seconds) - start) if rate else 0.0
        start += seconds
    assert _arrivals(lasting, last).arrived(now) == pytest.approx(integral, abs=1 + 1e-6)


def test_the_tenth_sample_of_ten_a_second_comes_after_one_second() -> None:
    """0.1 has no exact float, and floor(0.1 · 3 · 10) would be 3 only by luck."""
    arrivals = Same(per_second=10).arrivals(0, 0)
    assert [arrivals.arrived(tenths / 10) for tenths in range(11)] == list(range(11))


def test_a_stream_that_dries_up_never_brings_more() -> None:
    arrivals = Arrivals([(2.0, 3.0), (math.inf, 0.0)])
    assert arrivals.when(6) == 2.0
    assert arrivals.when(7) == math.inf
    assert arrivals.arrived(1e9) == 6


def test_a_late_sample_of_a_fast_stream_is_found_at_once() -> None:
    arrivals = Same(per_second=300).arrivals(0, 0)
    assert arrivals.arrived(1e7) == 3_000_000_000
    assert arrivals.when(3_000_000_000) == 1e7


def test_the_rate_follows_its_level() -> None:
    level = Piecewise(at=(Seconds(0), Seconds(10)), levels=(1.0, 0.5), repeat=Seconds(20))
    arrivals = Same(per_second=100, level=level).arrivals(0, 0)
    assert [arrivals.rate(now) for now in (0.0, 9.9, 10.0, 19.9, 20.0, 30.0)] == [100, 100, 50, 50, 100, 50]
    assert arrivals.arrived(40.0) == 3000


def test_a_trace_says_samples_per_second() -> None:
    rate = decode({"kind": "trace", "level": {"kind": "piecewise", "at": ["0 s", "1 s"], "levels": [40, 8]}}, Rate)
    assert isinstance(rate, Traced)
    assert rate.arrivals(0, 0).arrived(2.0) == 48


def test_devices_draw_each_their_own_rate_and_always_the_same() -> None:
    rate = Uniform(mean=300, deviation=112)
    drawn = [rate.of(place, 7) for place in range(200)]
    assert drawn == [rate.of(place, 7) for place in range(200)]
    assert len(set(drawn)) == 200
    assert sum(drawn) / 200 == pytest.approx(300, abs=25)
    assert min(drawn) > 300 - 1.74 * 112
    assert max(drawn) < 300 + 1.74 * 112


def test_no_device_is_slower_than_the_least() -> None:
    assert min(Uniform(mean=38, deviation=24, least=9).of(place, 0) for place in range(300)) == 9


def test_a_level_that_walks_is_each_devices_own() -> None:
    walk = Same(per_second=100, level=RandomWalk())
    assert walk.arrivals(0, 3).arrived(100.0) != walk.arrivals(1, 3).arrived(100.0)
    assert walk.arrivals(1, 3).arrived(100.0) == walk.arrivals(1, 3).arrived(100.0)


@pytest.mark.parametrize(
    ("name", "first", "mean", "deviation"),
    [("S1", [50, 38, 12], 38, 24), ("S2", [], 300, 112), ("S1'", [92, 38, 62], 64, 24), ("S2'", [270, 218], 256, 28)],
)
def test_the_published_sets_begin_as_published(name: str, first: list[float], mean: float, deviation: float) -> None:
    rate = decode({"kind": "scadles", "set": name}, Rate)
    assert isinstance(rate, Published)
    drawn = [rate.of(place, 0) for place in range(400)]
    assert drawn[: len(first)] == first
    assert sum(drawn) / 400 == pytest.approx(mean, abs=0.2 * deviation)
