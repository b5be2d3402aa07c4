"""A figure: the published value, the goal, the measured value, and whether the goal is met."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

__all__ = ["Figure", "Goal", "PublishedValue", "Spread", "figure_of_repeats", "format_amount", "format_value"]


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


class Spread(msgspec.Struct, frozen=True):
    """The lowest and the highest of several repeats."""

    low: float
    high: float
    repeats: int


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a benchmark's table; without a spread it is exact: simulated time, a count, arithmetic."""

    name: str
    unit: str
    measured: float
    published: PublishedValue | None = None
    goal: Goal | None = None
    spread: Spread | None = None
    note: str = ""

    @property
    def published_text(self) -> str:
        return format_amount(self.published.value, self.unit) if self.published else ""

    @property
    def goal_text(self) -> str:
        return f"{self.goal.comparison} {format_amount(self.goal.value, self.unit)}" if self.goal else ""

    @property
    def measured_text(self) -> str:
        """The value with its spread, if it was measured repeatedly."""
        value = format_amount(self.measured, self.unit)
        if self.spread is None or self.spread.repeats == 1:
            return value
        low, high = format_value(self.spread.low), format_value(self.spread.high)
        return f"{value} ({low} to {high}, {self.spread.repeats} repeats)"

    @property
    def meets_goal(self) -> bool | None:
        """None if the figure has no goal."""
        return None if self.goal is None else self.goal.is_met_by(self.measured)

    def as_table(self) -> dict[str, Any]:
        """Plain data, with `held` for whether the goal is met."""
        return {**msgspec.to_builtins(self), "held": self.meets_goal}


def figure_of_repeats(
    name: str,
    unit: str,
    values: Sequence[float],
    *,
    published: PublishedValue | None = None,
    goal: Goal | None = None,
    note: str = "",
) -> Figure:
    """The median of repeated measurements, with their spread."""
    spread = Spread(min(values), max(values), len(values))
    median = statistics.median(values)
    return Figure(name=name, unit=unit, measured=median, published=published, goal=goal, spread=spread, note=note)


def format_amount(value: float, unit: str) -> str:
    return f"{format_value(value)} {unit}".rstrip()


def format_value(value: float) -> str:
    """Four significant digits, with an exponent only for very large values."""
    if value == 0 or 1e-4 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3e}"
