"""A figure: what was published, what we aim at, what we measured, and whether that holds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

__all__ = ["Figure", "Goal", "PublishedValue", "Spread", "figure_of_repeats", "format_value"]


class PublishedValue(msgspec.Struct, frozen=True):
    """Someone else's number and where it stands."""

    value: float
    source: str


class Goal(msgspec.Struct, frozen=True):
    """`at least` or `at most` a value."""

    comparison: Literal["≥", "≤"]
    value: float

    def is_met_by(self, measured: float) -> bool:
        return measured >= self.value if self.comparison == "≥" else measured <= self.value


class Spread(msgspec.Struct, frozen=True):
    """The least and the most of several repeats."""

    low: float
    high: float
    repeats: int


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a benchmark's table; without a spread it is exact: virtual time, a count, arithmetic."""

    name: str
    unit: str
    measured: float
    published: PublishedValue | None = None
    goal: Goal | None = None
    spread: Spread | None = None
    note: str = ""

    @property
    def meets_goal(self) -> bool | None:
        """Whether the goal holds; None where there is none."""
        return None if self.goal is None else self.goal.is_met_by(self.measured)

    def as_table(self) -> dict[str, Any]:
        """Plain data, with the verdict."""
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
    middle = statistics.median(values)
    return Figure(name=name, unit=unit, measured=middle, published=published, goal=goal, spread=spread, note=note)


def format_value(value: float) -> str:
    """Four significant digits, and no exponent where people would not write one."""
    if value == 0 or 1e-4 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3e}"
