"""Bars end when the plan says, never overlap within a row, and are drawn in their columns."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.errors import UserError
from potluck.planning.gantt_chart import GanttBar, draw_gantt, segment_bars
from potluck.planning.segments import STRATEGIES, Direction, Strategy, plan_segments

seconds = st.floats(0.0, 100.0, allow_subnormal=False)
pairs = st.lists(st.tuples(seconds, seconds), min_size=1, max_size=12)


@given(pairs, seconds, st.sampled_from(("pull", "push")), st.sampled_from(STRATEGIES), seconds)
def test_bars_match_the_plan(
    layers: list[tuple[float, float]], overhead: float, direction: Direction, strategy: Strategy, latency: float
) -> None:
    compute, transfer = [c for c, _ in layers], [t for _, t in layers]
    plan = plan_segments(compute, transfer, overhead, direction, strategy, latency)
    bars = segment_bars(plan, compute, transfer, overhead, latency)
    end = max(bar.end for bar in bars) + (latency if direction == "push" else 0.0)
    assert math.isclose(end, plan.makespan, rel_tol=1e-9, abs_tol=1e-9)
    for row in {bar.row for bar in bars}:
        intervals = sorted((bar.start, bar.end) for bar in bars if bar.row == row)
        assert all(after[0] >= before[1] - 1e-9 for before, after in pairwise(intervals))
    assert len(bars) == len(layers) + len(plan.segments)


def test_a_layer_runs_only_after_its_segment_arrived() -> None:
    plan = plan_segments([1, 1], [1, 1], 0.5, "pull")
    assert segment_bars(plan, [1, 1], [1, 1], 0.5) == [
        GanttBar("pull", 0.0, 1.5, "0"),
        GanttBar("forward", 1.5, 2.5, "0"),
        GanttBar("pull", 1.5, 3.0, "1"),
        GanttBar("forward", 3.0, 4.0, "1"),
    ]
    pushed = segment_bars(plan_segments([1, 1], [1, 1], 9.0, "push"), [1, 1], [1, 1], 9.0)
    assert pushed == [GanttBar("backward", 0, 1, "1"), GanttBar("backward", 1, 2, "0"), GanttBar("push", 2, 13, "0-1")]


def test_the_drawing() -> None:
    bars = [
        GanttBar("stage 1", 0, 1, "F0"),
        GanttBar("stage 1", 1, 2, "F1"),
        GanttBar("stage 2", 1, 2, "F0"),
        GanttBar("link", 1, 1, "x"),
    ]
    assert draw_gantt(bars, 28).splitlines() == [
        "stage 1 ████F0████▒▒▒▒F1▒▒▒▒",
        "stage 2           ████F0████",
        "link    ",
        "        0 s              2 s",
    ]


@given(pairs, st.integers(0, 200))
def test_a_drawing_is_never_wider_than_asked_and_shows_every_busy_row(
    layers: list[tuple[float, float]], width: int
) -> None:
    compute, transfer = [c for c, _ in layers], [t for _, t in layers]
    bars = segment_bars(plan_segments(compute, transfer, 0.1), compute, transfer, 0.1)
    lines = draw_gantt(bars, width).splitlines()
    assert len(lines) == 3
    assert all(len(line) <= max(width, len("forward ") + 10) for line in lines)
    assert any(shade in lines[0] for shade in "█▒")


def test_empty_plans_and_times_of_another_plan_are_handled() -> None:
    assert draw_gantt([]) == ""
    assert draw_gantt([GanttBar("idle", 1.0, 1.0)], 20).startswith("idle")
    with pytest.raises(UserError, match="the plan has 2 layers"):
        segment_bars(plan_segments([1, 1], [1, 1], 0.5), [1], [1], 0.5)
