from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck import seeds
from potluck.errors import SettingError
from potluck.fleet.faults import (
    CrashFault,
    Fault,
    FleetChange,
    JoinFault,
    LeaveFault,
    MessageLossFault,
    PartitionFault,
    RestartFault,
    SlowdownFault,
    fault_streams,
    merge_by_time,
)  # fmt: skip
from potluck.settings import decode_settings
from potluck.units import Seconds

DURATIONS = st.floats(0, 100).map(Seconds)
TIMES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(lambda at: {"at": Seconds(at)}, st.floats(0, 1e4)),
    st.builds(lambda every: {"every": Seconds(every)}, st.floats(0.1, 1e4)),
)
FAULTS = TIMES.flatmap(
    lambda when: st.one_of(
        st.builds(lambda restart: CrashFault(restart=restart, **when), st.one_of(st.none(), DURATIONS)),
        st.just(RestartFault(**when)),
        st.builds(lambda back: LeaveFault(back=back, **when), st.one_of(st.none(), DURATIONS)),
        st.just(JoinFault(**when)),
        st.builds(lambda lasting: PartitionFault(lasting=lasting, **when), DURATIONS),
        st.builds(lambda lasting: SlowdownFault(lasting=lasting, **when), DURATIONS),
        st.builds(lambda lasting: MessageLossFault(lasting=lasting, **when), DURATIONS),
    )
)


def _rng(name: str) -> np.random.Generator:
    return seeds.child_generator(1, name)


@given(fault=FAULTS)
def test_a_rule_yields_changes_of_its_device_in_order_of_time(fault: Fault) -> None:
    changes = list(itertools.islice(fault.change_stream("pi", _rng("x")), 60))
    assert changes
    assert all(change.device == "pi" and change.at >= 0 for change in changes)
    assert all(a.at <= b.at for a, b in itertools.pairwise(changes))
    assert changes == list(itertools.islice(fault.change_stream("pi", _rng("x")), 60))


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        (CrashFault(at=Seconds(3)), [FleetChange(3.0, "pi", "crash")]),
        (
            CrashFault(at=Seconds(3), restart=Seconds(2)),
            [FleetChange(3.0, "pi", "crash"), FleetChange(5.0, "pi", "start")],
        ),
        (RestartFault(at=Seconds(3)), [FleetChange(3.0, "pi", "crash"), FleetChange(3.0, "pi", "start")]),
        (LeaveFault(at=Seconds(3)), [FleetChange(3.0, "pi", "leave")]),
        (
            LeaveFault(at=Seconds(3), back=Seconds(1)),
            [FleetChange(3.0, "pi", "leave"), FleetChange(4.0, "pi", "start")],
        ),
        (JoinFault(at=Seconds(3)), [FleetChange(3.0, "pi", "start")]),
        (PartitionFault(at=Seconds(3)), [FleetChange(3.0, "pi", "link", 0.0), FleetChange(13.0, "pi", "link", 1.0)]),
        (
            SlowdownFault(at=Seconds(3), factor=0.5),
            [FleetChange(3.0, "pi", "slow", 0.5), FleetChange(63.0, "pi", "slow", 1.0)],
        ),
        (
            MessageLossFault(at=Seconds(3), share=1.0),
            [FleetChange(3.0, "pi", "lose", 1.0), FleetChange(63.0, "pi", "lose", -1.0)],
        ),
    ],
)
def test_a_rule_at_a_time_happens_once(fault: Fault, changes: list[FleetChange]) -> None:
    assert list(fault.change_stream("pi", _rng("x"))) == changes


def test_a_rate_is_kept_on_average() -> None:
    crashes = RestartFault(every=Seconds(20)).change_stream("pi", _rng("x"))
    ends = [change.at for change in itertools.islice(crashes, 4000) if change.what == "crash"]
    assert np.mean(np.diff(ends)) == pytest.approx(20, rel=0.1)


def test_the_next_occurrence_waits_for_the_end_of_the_last() -> None:
    changes = list(
        itertools.islice(PartitionFault(every=Seconds(1), lasting=Seconds(50)).change_stream("pi", _rng("x")), 40)
    )
    assert [change.value for change in changes] == [0.0, 1.0] * 20


@pytest.mark.parametrize(
    ("pattern", "devices"),
    [("*", ["pi-0", "pi-1", "Pi-2"]), ("pi-*", ["pi-0", "pi-1"]), ("pi-1", ["pi-1"]), ("pi", []), ("?i-2", ["Pi-2"])],
)
def test_a_rule_names_devices_by_pattern(pattern: str, devices: list[str]) -> None:
    rule = CrashFault(device=pattern, at=Seconds(1))
    assert [name for name in ("pi-0", "pi-1", "Pi-2") if rule.matches_device(name)] == devices


def test_a_device_that_joins_later_is_absent_at_the_start() -> None:
    rules = [
        JoinFault(device="a", at=Seconds(5)),
        JoinFault(device="b", at=Seconds(0)),
        CrashFault(device="c", at=Seconds(1)),
    ]
    _, absent = fault_streams(rules, ["a", "b", "c"], _rng)
    assert absent == {"a"}
    assert not JoinFault(every=Seconds(3)).starts_absent()


def test_devices_draw_independently() -> None:
    rule = CrashFault(every=Seconds(10))
    (single,), _ = fault_streams([rule], ["b"], _rng)
    (_, second), _ = fault_streams([rule], ["a", "b"], _rng)
    (first, _), _ = fault_streams([rule], ["a", "b"], _rng)
    ours = [change.at for change in itertools.islice(single, 9)]
    assert ours == [change.at for change in itertools.islice(second, 9)]
    assert ours != [change.at for change in itertools.islice(first, 9)]


@given(stream_times=st.lists(st.lists(st.integers(0, 5).map(float), max_size=6).map(sorted), max_size=5))
def test_streams_merge_in_order_with_ties_by_stream(stream_times: list[list[float]]) -> None:
    devices = [
        [FleetChange(at, f"{stream}", "crash", float(index)) for index, at in enumerate(times)]
        for stream, times in enumerate(stream_times)
    ]
    merged = list(merge_by_time([iter(changes) for changes in devices]))
    assert merged == sorted(itertools.chain(*devices), key=lambda change: (change.at, int(change.device), change.value))


def test_an_endless_stream_does_not_block_the_others() -> None:
    endless = RestartFault(every=Seconds(1)).change_stream("a", _rng("a"))
    once = CrashFault(at=Seconds(7)).change_stream("b", _rng("b"))
    changes = list(itertools.takewhile(lambda change: change.at < 10, merge_by_time([endless, once])))
    assert FleetChange(7.0, "b", "crash") in changes
    assert len(changes) > 5


@pytest.mark.parametrize(
    ("raw", "path", "message"),
    [
        ({"kind": "crash"}, "", "give either `at`"),
        ({"kind": "crash", "at": 1, "every": 2}, "", "give either `at`"),
        ({"kind": "crash", "every": 0}, "", "above 0"),
        ({"kind": "crash", "at": "-1 s"}, "at", "negative"),
        ({"kind": "slow", "at": 1, "factor": 0}, "factor", "> 0"),
        ({"kind": "slow", "at": 1, "factor": 1.5}, "factor", "<= 1"),
        ({"kind": "lose", "at": 1, "share": 1.5}, "share", "<= 1"),
        ({"kind": "explode", "at": 1}, "", "choose from crash, restart, leave, join, partition, slow, hang, lose"),
    ],
)
def test_an_invalid_rule_is_refused(raw: dict[str, object], path: str, message: str) -> None:
    with pytest.raises(SettingError, match=message) as error:
        decode_settings(raw, Fault)
    assert error.value.path == path
