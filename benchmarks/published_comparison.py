"""Compares a figure with the published value, and says what a claim to be better still lacks.

A figure is better than published only if it was executed, not forecast; has at least three repeats or seeds; its
interval is clear of the published value; and its rival, if it has one, was tuned by the same procedure as ours. Every
figure with a published value is compared; where neither more nor less is better, it is reproduced or differs.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from benchmarks.benchmark_figures import Figure

__all__ = ["LEAST_REPEATS", "PublishedComparison", "compare_with_published"]

LEAST_REPEATS = 3
_EXECUTED = ("simulated", "live", "measured")
_TOLERANCE = 0.02  # a figure within this fraction of the published value counts as reproduced


class PublishedComparison(NamedTuple):
    """How a figure stands against the published value; `lacking` says why one that is ahead is not called better."""

    verdict: Literal["better", "ahead", "reproduced", "behind", "differs"]
    lacking: tuple[str, ...] = ()


def compare_with_published(figure: Figure) -> PublishedComparison | None:
    """None without a published value."""
    if figure.published is None:
        return None
    theirs = figure.published.value
    if abs(figure.measured - theirs) <= _TOLERANCE * abs(theirs):
        return PublishedComparison("reproduced")
    if figure.direction is None:
        return PublishedComparison("differs")
    sign = 1 if figure.direction == "more" else -1
    if sign * (figure.measured - theirs) < 0:
        return PublishedComparison("behind")
    lacking = tuple(_list_lacking(figure, sign, theirs))
    return PublishedComparison("ahead", lacking) if lacking else PublishedComparison("better")


def _list_lacking(figure: Figure, sign: int, theirs: float) -> list[str]:
    lacking = []
    if figure.executed not in _EXECUTED:
        lacking.append(f"it is {figure.executed}, not executed")
    if figure.interval is None or figure.repeats < LEAST_REPEATS:
        lacking.append(f"{figure.repeats} of at least {LEAST_REPEATS} repeats or seeds")
    elif sign * ((figure.interval.low if sign > 0 else figure.interval.high) - theirs) <= 0:
        lacking.append("its interval includes the published value")
    if figure.tuned_alike is False:
        lacking.append("its rival is not declared to be tuned by the same procedure")
    return lacking
