"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["BoundedCurve", "draw_sparkline"]

_LEVELS = "▁▂▃▄▅▆▇█"

Point = tuple[float, float]


class BoundedCurve:
    """A curve that grows without end and is kept by a bounded number of its points."""

    def __init__(self, most: int = 1024) -> None:
        self.points: list[Point] = []
        self._most = most
        self._every = 1
        self._seen = 0

    def add_point(self, at: float, value: float) -> None:
        if self._seen % self._every == 0:
            self.points.append((at, value))
        self._seen += 1
        if len(self.points) >= self._most:
            self.points = self.points[::2]
            self._every *= 2


def draw_sparkline(points: Sequence[Point], width: int, until: float, low: float = 0.0, high: float = 1.0) -> str:
    """The curve from 0 to `until` in `width` columns: each shows the newest value by then; it ends with its points."""
    if not points or until <= 0:
        return ""
    columns = min(max(math.ceil(width * points[-1][0] / until), 1), width)
    line, place = "", 0
    for column in range(1, columns + 1):
        while place + 1 < len(points) and points[place + 1][0] <= until * column / width:
            place += 1
        line += _level_char(points[place][1], low, high)
    return line


def _level_char(value: float, low: float, high: float) -> str:
    place = (value - low) / (high - low) * len(_LEVELS)
    return _LEVELS[min(max(int(place), 0), len(_LEVELS) - 1)]
