from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks.benchmark_figures import Figure, Goal, Interval, PublishedValue
from benchmarks.published_comparison import compare_with_published
from tests.benchmarks.made_up_results import benchmarks_with_figures, full_figures


def figure(measured: float, comparison: Any = "≥", **more: Any) -> Figure:
    """A figure that lacks nothing."""
    settings: dict[str, Any] = {
        "executed": "simulated", "interval": Interval(measured - 0.1, measured + 0.1, 3), "tuned_alike": True,
        "published": PublishedValue(10.0, "Somebody 2020"), "goal": Goal(comparison, 1.0),
    }  # fmt: skip
    return Figure(name="f", unit="x", measured=measured, **{**settings, **more})


@pytest.mark.parametrize(
    ("comparison", "measured", "expected"),
    [
        ("≥", 10.4, "better"),
        ("≥", 10.1, "reproduced"),
        ("≥", 9.85, "reproduced"),
        ("≥", 9.7, "behind"),
        ("≤", 9.6, "better"),
        ("≤", 10.3, "behind"),
    ],
)
def test_the_goal_or_a_flag_determines_which_direction_is_better(
    comparison: Any, measured: float, expected: str
) -> None:
    flag = "more" if comparison == "≥" else "less"
    for judged in (figure(measured, comparison), figure(measured, goal=None, better=flag)):
        compared = compare_with_published(judged)
        assert compared is not None
        assert compared.verdict == expected
    assert compare_with_published(figure(measured, published=None)) is None


def test_a_figure_of_which_neither_more_nor_less_is_better_is_reproduced_or_differs() -> None:
    compared = [compare_with_published(figure(measured, goal=None)) for measured in (9.7, 9.85, 10.1, 10.4)]
    assert [each and each.verdict for each in compared] == ["differs", "reproduced", "reproduced", "differs"]


def test_every_published_value_says_whether_more_or_less_is_better() -> None:
    """But for those that only describe the experiment, and the baseline that stalls."""
    undirected = {
        name
        for benchmark in benchmarks_with_figures().values()
        for name, each in full_figures(benchmark).items()
        if each.published and each.direction is None
    }
    assert undirected == {
        "bandwidth at which the gain peaks, lowest", "bandwidth at which the gain peaks, highest",
        "one class each: ddl: top-5", "four classes each: ddl: top-5",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "lacking"),
    [
        ({"executed": "forecast"}, "it is forecast, not executed"),
        ({"executed": "counted"}, "it is counted, not executed"),
        ({"interval": None}, "1 of at least 3 repeats or seeds"),
        ({"interval": Interval(19.0, 21.0, 2)}, "2 of at least 3 repeats or seeds"),
        ({"interval": Interval(9.9, 30.0, 5)}, "its interval includes the published value"),
        ({"tuned_alike": False}, "its rival is not declared to be tuned by the same procedure"),
    ],
)
def test_a_figure_that_lacks_something_is_not_called_better(more: dict[str, Any], lacking: str) -> None:
    compared = compare_with_published(figure(20.0, **more))
    assert compared is not None
    assert (compared.verdict, compared.lacking) == ("ahead", (lacking,))


def test_a_figure_without_a_rival_of_ours_may_be_called_better() -> None:
    compared = compare_with_published(figure(20.0, tuned_alike=None))
    assert compared is not None
    assert compared.verdict == "better"


def test_how_a_figure_was_executed_must_be_said() -> None:
    with pytest.raises(TypeError, match="executed"):
        Figure(name="f", unit="x", measured=1.0)  # type: ignore[call-arg]
    with pytest.raises(msgspec.ValidationError, match="executed"):
        msgspec.convert({"name": "f", "unit": "x", "measured": 1.0, "executed": "guessed"}, Figure)
