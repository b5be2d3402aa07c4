from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.journal import Span
from potluck.report.device_absence import Absence
from potluck.report.run_history import RunHistory
from potluck.report.time_breakdown import CLASSES, BusyTime, seconds_by_class

NAMES = st.sampled_from(["pull", "compute", "push", "forward", "recover", "stream", "whatever"])
SPANS = st.builds(
    lambda name, start, length: Span("a", name, float(start), float(start + length)),
    NAMES, st.integers(0, 90), st.integers(0, 20),
)  # fmt: skip


def _seconds(*spans: Span, absences: tuple[Absence, ...] = (), end: float = 10.0) -> dict[str, float]:
    history = RunHistory().add_records(spans)
    seconds = seconds_by_class(history.tracks["a"], history.lanes, absences, end)
    return {name: value for name, value in seconds.items() if value}


def test_transfers_during_computation_count_as_hidden() -> None:
    seconds = _seconds(Span("a", "compute", 1.0, 5.0), Span("a", "push", 4.0, 7.0))
    assert seconds == {"compute": 3.0, "hidden": 1.0, "send": 2.0, "wait": 4.0}


def test_absent_devices_do_not_count_as_waiting() -> None:
    assert _seconds(Span("a", "pull", 0.0, 2.0), absences=(Absence(2.0, 9.0, "dead"),)) == {
        "receive": 2.0, "dead": 7.0, "wait": 1.0,
    }  # fmt: skip


def test_two_transfers_at_once_count_once() -> None:
    assert _seconds(Span("a", "push", 0.0, 6.0), Span("a", "replicate", 2.0, 8.0)) == {"send": 8.0, "wait": 2.0}


@given(st.lists(SPANS, min_size=1, max_size=20))
def test_every_moment_belongs_to_exactly_one_class(spans: list[Span]) -> None:
    history = RunHistory().add_records(spans)
    if "a" not in history.tracks or not len(history.tracks["a"]):
        return
    seconds = seconds_by_class(history.tracks["a"], history.lanes, (Absence(30.0, 40.0, "cut"),), 120.0)
    assert set(seconds) == set(CLASSES)
    assert all(value >= 0 for value in seconds.values())
    assert sum(seconds.values()) == pytest.approx(120.0)


def test_busy_seconds_grow_with_the_spans() -> None:
    history = RunHistory().add_records(
        [Span("a", "pull", 1.0, 3.0), Span("a", "compute", 2.0, 5.0), Span("a", "recover", 6.0, 9.0)]
    )
    busy = BusyTime(history.tracks["a"], history.lanes)
    assert busy.busy_s_until(np.array([0.0, 2.0, 5.0, 20.0])) == pytest.approx([0.0, 1.0, 4.0, 4.0])
