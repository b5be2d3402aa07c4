"""Draws a curve as one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["BoundedCurve", "draw_sparkline"]

_LEVELS = "▁▂▃▄▅▆▇█"

Point = tuple[float, float]


class BoundedCurve:
    """A curve that keeps a bounded number of points, however many are added."""

    def __init__(self, max_points: int = 1024) -> None:
        self.points: list[Point] = []
        self._max_points = max_points
        self._every = 1
        self._seen = 0

    def add_point(self, at: float, value: float) -> None:
        if self._seen % self._every == 0:
            self.points.append((at, value))
        self._seen += 1
        if len(self.points) >= self._max_points:
            self.points = self.points[::2]
            self._every *= 2


def draw_sparkline(points: Sequence[Point], width: int, until: float, low: float = 0.0, high: float = 1.0) -> str:
    """The curve from 0 to `until` in `width` columns; each column shows the latest value up to its time."""
    if not points or until <= 0:
        return ""
    columns = min(max(math.ceil(width * points[-1][0] / until), 1), width)
    line, index = "", 0
    for column in range(1, columns + 1):
        while index + 1 < len(points) and points[index + 1][0] <= until * column / width:
            index += 1
        line += _level_char(points[index][1], low, high)
    return line


def _level_char(value: float, low: float, high: float) -> str:
    level = (value - low) / (high - low) * len(_LEVELS)
    return _LEVELS[min(max(int(level), 0), len(_LEVELS) - 1)]
