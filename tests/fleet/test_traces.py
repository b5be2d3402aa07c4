from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.errors import SettingError
from potluck.fleet.traces import ConstantTrace, CsvTrace, PiecewiseTrace, RandomWalkTrace, Trace
from potluck.settings import decode_settings
from potluck.units import Seconds


def _first_intervals(trace: Trace, count: int = 200, seed: int = 0) -> list[tuple[float, float]]:
    return list(itertools.islice(trace.level_intervals(np.random.default_rng(seed)), count))


@st.composite
def piecewise(draw: st.DrawFn) -> PiecewiseTrace:
    gaps = draw(st.lists(st.floats(0.001, 1e4), max_size=5))
    at = tuple(Seconds(end) for end in itertools.accumulate(gaps, initial=0.0))
    levels = tuple(draw(st.lists(st.floats(0, 4), min_size=len(at), max_size=len(at))))
    later = st.floats(0.001, 1e4).map(lambda more: Seconds(at[-1] + more))
    repeat = draw(st.one_of(st.none(), later) if any(levels) else st.none())
    return PiecewiseTrace(at=at, levels=levels, repeat=repeat)


@st.composite
def walks(draw: st.DrawFn) -> RandomWalkTrace:
    low = draw(st.floats(0, 2))
    high = low + draw(st.floats(0.001, 2))
    return RandomWalkTrace(low=low, high=high, step=draw(st.floats(0, 9)), every=Seconds(draw(st.floats(0.01, 1e3))))


TRACES = st.one_of(st.builds(ConstantTrace, level=st.floats(0, 4)), piecewise(), walks())


@given(trace=TRACES, seed=st.integers(0, 9))
def test_intervals_are_contiguous_and_reproducible(trace: Trace, seed: int) -> None:
    intervals = _first_intervals(trace, seed=seed)
    ends = [until for until, _ in intervals]
    assert ends[0] > 0
    assert all(a < b for a, b in itertools.pairwise(ends))
    assert all(level >= 0 for _, level in intervals)
    assert len(intervals) == 200 or math.isinf(ends[-1])
    assert intervals == _first_intervals(trace, seed=seed)


@given(walk=walks(), seed=st.integers(0, 9))
def test_a_walk_stays_within_its_bounds_and_moves_by_one_step_at_most(walk: RandomWalkTrace, seed: int) -> None:
    levels = [level for _, level in _first_intervals(walk, seed=seed)]
    assert all(walk.low <= level <= walk.high for level in levels)
    assert all(abs(b - a) <= walk.step + 1e-12 for a, b in itertools.pairwise(levels))


def test_a_walk_visits_all_of_its_range() -> None:
    levels = np.array([level for _, level in _first_intervals(RandomWalkTrace(low=0.2, high=0.8, step=0.3), 4000)])
    counts, _ = np.histogram(levels, bins=6, range=(0.2, 0.8))
    assert counts.min() > 300


def test_a_constant_trace_has_a_constant_level() -> None:
    assert ConstantTrace(level=0.25).constant_level == 0.25
    assert RandomWalkTrace().constant_level is None
    assert PiecewiseTrace(at=(Seconds(0),), levels=(1.0,)).constant_level is None
    assert _first_intervals(ConstantTrace(level=0.25)) == [(math.inf, 0.25)]


def test_levels_change_at_the_given_times_and_repeat() -> None:
    once = PiecewiseTrace(at=(Seconds(0), Seconds(30)), levels=(1.0, 0.4))
    assert _first_intervals(once) == [(30.0, 1.0), (math.inf, 0.4)]
    repeating = PiecewiseTrace(at=(Seconds(0), Seconds(30)), levels=(1.0, 0.4), repeat=Seconds(40))
    assert _first_intervals(repeating, 4) == [(30.0, 1.0), (40.0, 0.4), (70.0, 1.0), (80.0, 0.4)]


def test_a_csv_file_has_two_columns_and_an_optional_header(tmp_path: Path) -> None:
    path = tmp_path / "levels.csv"
    for header in ("", "seconds,level\n"):
        path.write_text(f"{header}0,1\n10,0.5\n\n25.5,0\n")
        assert _first_intervals(CsvTrace(file=str(path))) == [(10.0, 1.0), (25.5, 0.5), (math.inf, 0.0)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "two columns of numbers"),
        ("seconds,level\n", "two columns of numbers"),
        ("0,1,2\n", "two columns of numbers"),
        ("0,1\nten,1\n", "two columns of numbers"),
        ("0,nan\n", "two columns of numbers"),
        ("0,inf\n", "two columns of numbers"),
        ("0,1\n0,2\n", "must rise"),
        ("5,1\n3,2\n", "must rise"),
        ("0,-1\n", "must not be negative"),
        ("-5,1\n-3,2\n0,1\n", "must rise from 0 or later"),
    ],
)
def test_an_invalid_csv_trace_is_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "levels.csv"
    path.write_text(content)
    with pytest.raises(SettingError, match=message) as error:
        decode_settings({"kind": "csv", "file": str(path)}, Trace, "speed")
    assert error.value.path == "speed"
    assert "levels.csv" in str(error.value)


def test_a_missing_or_binary_csv_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "picture.csv").write_bytes(b"\xff\xd8\xff\x00")
    for name in ("none.csv", "picture.csv", "."):
        with pytest.raises(SettingError):
            decode_settings({"kind": "csv", "file": str(tmp_path / name)}, Trace)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"kind": "piecewise", "at": [], "levels": []}, "at least 1"),
        ({"kind": "piecewise", "at": [0, 1], "levels": [1]}, "got 2 and 1"),
        ({"kind": "piecewise", "at": [1], "levels": [1]}, "must start at 0"),
        ({"kind": "piecewise", "at": [0, 5, 5], "levels": [1, 1, 1]}, "rise"),
        ({"kind": "piecewise", "at": [0, 5], "levels": [1, -1]}, ">= 0"),
        ({"kind": "piecewise", "at": [0, 5], "levels": [1, 1], "repeat": 5}, "later than the last"),
        ({"kind": "piecewise", "at": [0], "levels": [0], "repeat": 10}, "needs a level above 0"),
        ({"kind": "piecewise", "at": [0, 5], "levels": [0, 0], "repeat": 10}, "needs a level above 0"),
        ({"kind": "random-walk", "low": 1, "high": 1}, "must be below"),
        ({"kind": "random-walk", "every": 0}, "above 0"),
        ({"kind": "constant", "level": -0.1}, ">= 0"),
    ],
)
def test_an_invalid_trace_is_refused(raw: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        decode_settings(raw, Trace)
