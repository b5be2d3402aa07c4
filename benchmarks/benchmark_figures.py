"""A figure: the measured value with its interval, how it was executed, the published value, and the goal.

A figure of several repeats or seeds is their mean with the 95 % t-interval; that is the only kind of interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from potluck.report.svg_chart import ChartSeries

__all__ = [
    "EXECUTIONS",
    "Direction",
    "Execution",
    "Figure",
    "FigureOptions",
    "Goal",
    "Interval",
    "PublishedValue",
    "bar_series",
    "figure_of_repeats",
    "format_amount",
    "format_value",
    "interval_of_repeats",
]

Direction = Literal["more", "less"]
Execution = Literal["forecast", "simulated", "live", "measured", "counted"]
EXECUTIONS: dict[Execution, str] = {
    "forecast": "computed by a planner from a model of the costs; nothing ran",
    "simulated": "ran in virtual time: real gradients and the real protocol, modelled time; exactly repeatable",
    "live": "ran as real processes that exchange messages, by the wall clock",
    "measured": "ran in one process on this machine, by its clock and its counters",
    "counted": "arithmetic on definitions, such as MACs and parameters; exact",
}


class PublishedValue(msgspec.Struct, frozen=True):
    """A value that others reported, and its source."""

    value: float
    source: str


class Goal(msgspec.Struct, frozen=True):
    """At least or at most a value."""

    comparison: Literal["≥", "≤"]
    value: float

    def is_met_by(self, measured: float) -> bool:
        return measured >= self.value if self.comparison == "≥" else measured <= self.value


class Interval(msgspec.Struct, frozen=True):
    """The 95 % t-interval of the mean of several repeats or seeds; of a single one, its value."""

    low: float
    high: float
    repeats: int


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a benchmark's table.

    `better` says whether more or less is better than the published value if there is no goal to say it; None if neither
    is, as for a baseline that is known to do badly.

    `tuned_alike` says whether the rival that the figure is relative to was tuned by the same procedure as ours; None if
    the figure has no rival that we ran. Only then may it be called better than published.
    """

    name: str
    unit: str
    measured: float
    executed: Execution
    published: PublishedValue | None = None
    goal: Goal | None = None
    better: Direction | None = None
    interval: Interval | None = None
    tuned_alike: bool | None = False
    note: str = ""

    @property
    def published_text(self) -> str:
        return format_amount(self.published.value, self.unit) if self.published else ""

    @property
    def goal_text(self) -> str:
        return f"{self.goal.comparison} {format_amount(self.goal.value, self.unit)}" if self.goal else ""

    @property
    def measured_text(self) -> str:
        """The value with its interval, if it was measured repeatedly."""
        value = format_amount(self.measured, self.unit)
        if self.interval is None or self.interval.repeats == 1:
            return value
        low, high = format_value(self.interval.low), format_value(self.interval.high)
        return f"{value} ({low} to {high}, n = {self.interval.repeats})"

    @property
    def repeats(self) -> int:
        return 1 if self.interval is None else self.interval.repeats

    @property
    def direction(self) -> Direction | None:
        """Whether more or less is better; None if neither is."""
        if self.goal is None:
            return self.better
        return "more" if self.goal.comparison == "≥" else "less"

    @property
    def meets_goal(self) -> bool | None:
        """None if the figure has no goal."""
        return None if self.goal is None else self.goal.is_met_by(self.measured)

    def as_table(self) -> dict[str, Any]:
        """Plain data, with `held` for whether the goal is met."""
        return {**msgspec.to_builtins(self), "held": self.meets_goal}


class FigureOptions(TypedDict, total=False):
    """The fields of a figure that may be left out."""

    published: PublishedValue | None
    goal: Goal | None
    better: Direction | None
    tuned_alike: bool | None
    note: str


def figure_of_repeats(
    name: str, unit: str, values: Sequence[float], *, executed: Execution, **options: Unpack[FigureOptions]
) -> Figure:
    """The mean of repeated measurements, with its interval."""
    mean, interval = statistics.fmean(values), interval_of_repeats(values)
    return Figure(name=name, unit=unit, measured=mean, executed=executed, interval=interval, **options)


def bar_series(name: str, figures: Sequence[Figure]) -> ChartSeries:
    """The values of figures as bars, with their intervals if all of them have one."""
    intervals = [(each.interval.low, each.interval.high) for each in figures if each.interval and each.repeats > 1]
    values = [figure.measured for figure in figures]
    return ChartSeries(name, values, intervals=intervals if len(intervals) == len(figures) else ())


def interval_of_repeats(values: Sequence[float]) -> Interval:
    """The 95 % t-interval of the mean. A value that is not finite makes it reach from the least to the greatest."""
    mean, count = statistics.fmean(values), len(values)
    if count == 1 or not math.isfinite(mean):
        return Interval(min(values), max(values), count)
    half = _student_t(count - 1) * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean - half, mean + half, count)


_STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip


def _student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t distribution with that many degrees of freedom."""
    return _STUDENT_T[freedom - 1] if freedom <= len(_STUDENT_T) else 1.96 + 2.5 / freedom


def format_amount(value: float, unit: str) -> str:
    return f"{format_value(value)} {unit}".rstrip()


def format_value(value: float) -> str:
    """Four significant digits, with an exponent only for very large values."""
    if value == 0 or 1e-4 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3e}"
