from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck import seeds
from potluck.fleet import Fleet, device_speed, fleet_changes
from potluck.fleet.faults import FleetChange
from potluck.fleet.speed_curve import SpeedCurve
from potluck.settings import decode_settings
from tests.time_limits import within

Rng = Callable[[str], np.random.Generator]


def _rng(seed: int = 0) -> Rng:
    return lambda name: seeds.child_generator(seed, name)


def _fleet(*groups: dict[str, Any], faults: list[dict[str, Any]] | None = None) -> Fleet:
    return decode_settings({"devices": [{"preset": "pi4", **group} for group in groups], "faults": faults or []}, Fleet)


def _until(fleet: Fleet, end: float, seed: int = 0) -> tuple[list[FleetChange], set[str]]:
    """The non-empty changes before `end`, and the devices that are absent at the start."""
    changes, absent = fleet_changes(fleet, _rng(seed))
    return [change for change in itertools.takewhile(lambda change: change.at < end, changes) if change.what], absent


def _speed(fleet: Fleet, count: int = 50, seed: int = 0) -> list[tuple[float, float]]:
    return list(itertools.islice(device_speed(fleet, fleet.members[0], _rng(seed)), count))


def _levels(*pairs: tuple[float, float], **more: Any) -> dict[str, Any]:
    return {"kind": "piecewise", "at": [at for at, _ in pairs], "levels": [level for _, level in pairs], **more}


def test_a_fleet_without_faults_has_an_empty_script() -> None:
    assert _until(_fleet({"count": 3}), math.inf) == ([], set())


def test_a_device_leaves_and_returns_with_its_availability() -> None:
    fleet = _fleet({"available": _levels((0, 1), (10, 0.4), (15, 0.3), (20, 0.5), (30, 0.9), (40, 0))})
    changes, absent = _until(fleet, math.inf)
    assert [(change.at, change.what) for change in changes] == [(10.0, "leave"), (20.0, "start"), (40.0, "leave")]
    assert absent == set()


def test_a_device_that_is_not_available_at_first_is_absent() -> None:
    later = _fleet({"available": _levels((0, 0.2), (10, 1))})
    assert _until(later, math.inf) == ([FleetChange(10.0, "pi4", "start")], {"pi4"})
    never = _fleet({"name": "a", "available": {"kind": "constant", "level": 0}}, {"name": "b"})
    assert _until(never, math.inf) == ([], {"a"})


@settings(deadline=None)
@given(seed=st.integers(0, 50))
def test_a_walking_availability_alternates(seed: int) -> None:
    fleet = _fleet({"count": 3, "available": {"kind": "random-walk", "low": 0, "high": 1, "step": 0.5}})
    changes, absent = _until(fleet, 500.0, seed)
    for device in fleet.members:
        kinds = [change.what for change in changes if change.device == device.name]
        expected = itertools.cycle(["start", "leave"] if device.name in absent else ["leave", "start"])
        assert kinds == list(itertools.islice(expected, len(kinds)))


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param({"kind": "random-walk", "low": 0.6}, id="walk"),
        pytest.param({"kind": "random-walk", "low": 0.1, "high": 0.4}, id="low walk"),
        pytest.param(_levels((0, 1), (10, 0.8), repeat=20), id="repeated"),
    ],
)
def test_an_availability_that_never_crosses_one_half_does_not_block_the_stream(trace: dict[str, Any]) -> None:
    with within(0.5):
        changes, _ = fleet_changes(_fleet({"available": trace}), _rng())
        assert {change.what for change in itertools.islice(changes, 100)} == {""}


def test_faults_and_traces_form_one_ordered_stream() -> None:
    fleet = _fleet(
        {"name": "a", "available": _levels((0, 1), (10, 0), (20, 1))},
        {"name": "b", "link": {"quality": _levels((0, 1), (15, 0.5))}},
        faults=[{"kind": "crash", "device": "b", "at": 12}, {"kind": "partition", "device": "a", "at": 5}],
    )
    changes, _ = _until(fleet, math.inf)
    assert [(change.at, change.device, change.what, change.value) for change in changes] == [
        (0.0, "b", "bandwidth", 1.0),
        (5.0, "a", "link", 0.0),
        (10.0, "a", "leave", 1.0),
        (12.0, "b", "crash", 1.0),
        (15.0, "a", "link", 1.0),
        (15.0, "b", "bandwidth", 0.5),
        (20.0, "a", "start", 1.0),
    ]


def test_bandwidth_never_falls_to_zero() -> None:
    fleet = _fleet({"link": {"quality": _levels((0, 1), (10, 0), (20, 1))}})
    changes, _ = _until(fleet, math.inf)
    assert [change.what for change in changes] == ["bandwidth"] * 3
    assert 0 < changes[1].value < 1e-6


@settings(deadline=None)
@given(seed=st.integers(0, 20))
def test_a_device_s_script_does_not_depend_on_the_rest_of_the_fleet(seed: int) -> None:
    device = {"name": "a", "available": {"kind": "random-walk", "low": 0, "step": 0.5}}
    faults = [{"kind": "crash", "device": "a*", "every": "20 s", "restart": "1 s"}]
    single, _ = _until(_fleet(device, faults=faults), 200.0, seed)
    among_others, _ = _until(_fleet(device, {"name": "ab", "count": 3}, faults=faults), 200.0, seed)
    assert single == [change for change in among_others if change.device == "a"]
    assert single == _until(_fleet(device, faults=faults), 200.0, seed)[0]


def test_a_change_of_speed_is_not_in_the_script() -> None:
    fleet = _fleet({"speed": {"kind": "random-walk"}}, faults=[{"kind": "slow", "at": 3}])
    assert _until(fleet, math.inf) == ([], set())


def test_a_speed_is_its_trace_times_its_slowdowns() -> None:
    constant = _fleet({"speed": {"kind": "constant", "level": 0.5}})
    assert _speed(constant) == [(math.inf, 0.5)]
    slow = _fleet(
        {"speed": _levels((0, 1), (10, 0.5))},
        faults=[
            {"kind": "slow", "at": 5, "lasting": 10, "factor": 0.5},
            {"kind": "slow", "at": 12, "lasting": 10, "factor": 0.1},
        ],
    )
    assert _speed(slow) == [
        (5.0, 1.0),
        (10.0, 0.5),
        (12.0, 0.25),
        (15.0, pytest.approx(0.025)),
        (22.0, pytest.approx(0.05)),
        (math.inf, 0.5),
    ]


def test_a_slowdown_from_the_start_and_one_for_ever() -> None:
    fleet = _fleet({}, faults=[{"kind": "slow", "at": 0, "lasting": 10, "factor": 0.5}])
    assert _speed(fleet) == [(10.0, 0.5), (math.inf, 1.0)]
    fleet = _fleet({}, faults=[{"kind": "slow", "at": 2, "lasting": "unlimited", "factor": 0.5}])
    assert _speed(fleet) == [(2.0, 1.0), (math.inf, 0.5)]


@settings(deadline=None)
@given(seed=st.integers(0, 20))
def test_the_intervals_of_a_speed_are_ordered(seed: int) -> None:
    fleet = _fleet({"speed": {"kind": "random-walk"}}, faults=[{"kind": "slow", "every": "7 s", "lasting": "5 s"}])
    ends = [until for until, _ in _speed(fleet, seed=seed)]
    assert all(a < b for a, b in itertools.pairwise(ends))
    assert _speed(fleet, seed=seed) == _speed(fleet, seed=seed)
    assert _speed(fleet, seed=seed) != _speed(fleet, seed=seed + 1)


def test_a_device_that_hangs_for_ever_has_no_endless_speed_curve() -> None:
    """Its speed is 0 from then on, although its trace goes on changing."""
    walk = {"kind": "random-walk", "low": 0.1, "every": "1 s"}
    fleet = decode_settings(
        {
            "devices": [{"name": "pi", "flops": "1 GFLOP/s", "speed": walk}],
            "faults": [{"kind": "hang", "at": "5 s"}, {"kind": "hang", "at": "1 s", "lasting": "2 s"}],
        },
        Fleet,
    )
    intervals = list(device_speed(fleet, fleet.members[0], lambda name: np.random.default_rng(0)))
    assert intervals[-1] == (math.inf, 0.0)
    assert [until for until, level in intervals[:-1] if level == 0] == [2.0, 3.0]
    curve = SpeedCurve(iter(intervals))
    assert math.isinf(curve.finish_time(4.9, 10.0))
