"""Draws line and bar charts as SVG without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape

__all__ = ["Chart", "ChartSeries", "draw_charts"]

_WIDTH, _HEIGHT = 560, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 18, 38, 104
_LABEL_GAP = 34.0  # least distance of labels along the x axis
_WHISKER = 3.5  # half the width of the ends of an interval
_INTERVAL_MARGIN = 0.25  # of the range of the values, by which intervals may extend it
_LOG_STEPS = (1.0, 2.0, 5.0)
_HALO = 'paint-order="stroke" stroke="#ffffff" stroke-width="3"'  # keeps text readable on lines and bars
_LETTER_WIDTH = 0.58  # in font sizes
_INK, _GRID = "#222222", "#dddddd"
_COLOURS = ("#1b6ca8", "#d1495b", "#3b8b4a", "#e09f3e", "#6d4c9f", "#5c6770", "#17a2a2")


@dataclass(frozen=True)
class ChartSeries:
    """Named values: at `xs` in a line chart, one per group in a bar chart; `intervals` are drawn as whiskers."""

    name: str
    ys: Sequence[float]
    xs: Sequence[float] = ()
    intervals: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Chart:
    """One pair of axes. With `groups` it is a bar chart; `marks` are named horizontal lines, drawn dashed."""

    title: str
    series: Sequence[ChartSeries]
    y_label: str
    x_label: str = ""
    groups: Sequence[str] = ()
    x_scale: Literal["linear", "log"] = "linear"
    marks: Sequence[tuple[str, float]] = ()


def draw_charts(charts: Sequence[Chart], columns: int = 2) -> str:
    """All charts in one picture, arranged in rows."""
    columns = min(columns, len(charts))
    width, height = columns * _WIDTH, -(-len(charts) // columns) * _HEIGHT
    body = [
        f'<g transform="translate({index % columns * _WIDTH},{index // columns * _HEIGHT})">'
        f"{''.join(_draw_axes(chart))}</g>"
        for index, chart in enumerate(charts)
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="system-ui, sans-serif" font-size="11" fill="{_INK}">'
    )
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *body, "</svg>\n"])


def _draw_axes(chart: Chart) -> Iterator[str]:
    low, high, ticks = _value_range(chart)
    yield _svg_text(_WIDTH / 2, 20, chart.title, "middle", 'font-size="14" font-weight="600"')
    for tick in ticks:
        y = _y_position(tick, low, high)
        yield _svg_line(_LEFT, y, _WIDTH - _RIGHT, y, _INK if tick == 0 else _GRID)
        yield _svg_text(_LEFT - 6, y + 4, f"{tick:g}", "end")
    yield _svg_text(
        0, 0, chart.y_label, "middle", f'transform="translate(14,{(_TOP + _HEIGHT - _BOTTOM) / 2}) rotate(-90)"'
    )
    below = 50 if chart.groups else 36
    yield _svg_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - _BOTTOM + below, chart.x_label, "middle")
    yield from _draw_bars(chart, low, high) if chart.groups else _draw_lines(chart, low, high)
    for name, value in chart.marks:
        y = _y_position(value, low, high)
        yield _svg_line(_LEFT, y, _WIDTH - _RIGHT, y, _INK, 'stroke-dasharray="5 4"')
        yield _svg_text(_LEFT + 4, y - 4, name, "start", _HALO)
    yield from _draw_legend(chart)


def _draw_lines(chart: Chart, low: float, high: float) -> Iterator[str]:
    xs = [x for series in chart.series for x in series.xs]
    scaled = (lambda x: math.log(x)) if chart.x_scale == "log" else float
    first, last = scaled(min(xs)), scaled(max(xs))

    def position(x: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (scaled(x) - first) / ((last - first) or 1.0)

    labelled = -math.inf
    for tick in _log_ticks(min(xs), max(xs)) if chart.x_scale == "log" else _linear_ticks(min(xs), max(xs)):
        at = position(tick)
        yield _svg_line(at, _HEIGHT - _BOTTOM, at, _HEIGHT - _BOTTOM + 4, _INK)
        if at - labelled >= _LABEL_GAP:
            labelled = at
            yield _svg_text(at, _HEIGHT - _BOTTOM + 18, f"{tick:g}", "middle")
    for colour, series in zip(_series_colours(chart), chart.series, strict=True):
        points = [(position(x), _y_position(y, low, high)) for x, y in zip(series.xs, series.ys, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>' for x, y in points)
        for (x, _), interval in zip(points, series.intervals, strict=False):
            yield from _draw_whisker(x, interval, colour, low, high)


def _draw_bars(chart: Chart, low: float, high: float) -> Iterator[str]:
    group = (_WIDTH - _LEFT - _RIGHT) / len(chart.groups)
    bar = 0.8 * group / len(chart.series)
    for number, name in enumerate(chart.groups):
        left = _LEFT + group * (number + 0.1)
        yield from _draw_group_name(name, left + 0.4 * group, group)
        for index, (colour, series) in enumerate(zip(_series_colours(chart), chart.series, strict=True)):
            x, value = left + index * bar, series.ys[number]
            zero, y = _y_position(0.0, low, high), _y_position(value, low, high)
            yield _svg_rect(x, min(zero, y), 0.9 * bar, abs(y - zero), colour)
            top = min(zero, y)
            if series.intervals:
                yield from _draw_whisker(x + 0.45 * bar, series.intervals[number], _INK, low, high)
                top = min(top, _y_position(_clipped(max(series.intervals[number]), low, high), low, high))
            written = f"{value:.3g}" if bar > 24 else f"{value:.2g}"
            size = _fitting_font_size(written, bar)
            yield _svg_text(x + bar * 0.45, top - 4, written, "middle", f'{_HALO} font-size="{size:.1f}"')


def _draw_whisker(x: float, interval: tuple[float, float], colour: str, low: float, high: float) -> Iterator[str]:
    """Cut off at the edges of the chart, without an end there."""
    ends = [_y_position(_clipped(value, low, high), low, high) for value in interval]
    yield _svg_line(x, ends[0], x, ends[1], colour)
    for value, y in zip(interval, ends, strict=True):
        if low <= value <= high:
            yield _svg_line(x - _WHISKER, y, x + _WHISKER, y, colour)


def _clipped(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))


def _draw_group_name(name: str, x: float, width: float) -> Iterator[str]:
    """The name below a group of bars, in up to three lines where it would not fit otherwise."""
    lines = min(
        (_wrapped(name, count) for count in (1, 2, 3)),
        key=lambda lines: -min(_fitting_font_size(each, width) for each in lines),
    )
    size = min(_fitting_font_size(line, width) for line in lines)
    for number, line in enumerate(lines):
        yield _svg_text(x, _HEIGHT - _BOTTOM + 15 + 12 * number, line, "middle", f'font-size="{size:.1f}"')


def _wrapped(name: str, lines: int) -> list[str]:
    """The words in at most so many lines of about equal length."""
    words, longest = name.split(" "), len(name) / lines
    wrapped = [words[0]]
    for word in words[1:]:
        if len(wrapped) < lines and len(wrapped[-1]) + len(word) / 2 >= longest:
            wrapped.append(word)
        else:
            wrapped[-1] += f" {word}"
    return wrapped


def _fitting_font_size(words: str, width: float) -> float:
    """The largest font size at which the words fit into the width."""
    return min(11.0, 0.94 * width / (_LETTER_WIDTH * len(words)))


def _draw_legend(chart: Chart) -> Iterator[str]:
    """In as many rows as needed."""
    x, y = float(_LEFT), _HEIGHT - 44.0
    for colour, series in zip(_series_colours(chart), chart.series, strict=True):
        width = 28 + 6.2 * len(series.name)
        if x > _LEFT and x + width > _WIDTH:
            x, y = float(_LEFT), y + 15
        yield _svg_rect(x, y - 9, 10, 10, colour)
        yield _svg_text(x + 14, y, series.name, "start")
        x += width


def _value_range(chart: Chart) -> tuple[float, float, list[float]]:
    """From the tick below the lowest value to the tick above the highest; bars, and lines near it, include 0."""
    values = [y for series in chart.series for y in series.ys] + [value for _, value in chart.marks]
    low, high = min(values), max(values)
    if chart.groups or low < 0.6 * high or high <= 0:
        low, high = min(0.0, low), max(0.0, high)
    ends = [end for series in chart.series for interval in series.intervals for end in interval if math.isfinite(end)]
    margin = _INTERVAL_MARGIN * (high - low)  # wider intervals are cut off, so that the values stay readable
    lowest, highest = (0.0 if low >= 0 else low - margin), high + margin
    low, high = min([low, *(max(end, lowest) for end in ends)]), max([high, *(min(end, highest) for end in ends)])
    step = _tick_step(low, high)
    first, last = math.floor(low / step), math.ceil(high / step + 0.15)
    return first * step, last * step, [round(number * step, 10) for number in range(first, last + 1)]


def _tick_step(low: float, high: float) -> float:
    """So that about five ticks fit."""
    rough = ((high - low) or abs(high) or 1.0) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _linear_ticks(low: float, high: float) -> list[float]:
    if high == low:
        return [low]
    step = _tick_step(low, high)
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [round(number * step, 10) for number in numbers]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every decade between the two, or equal steps if there are few of them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [round(step * 10.0**power, 10) for power in powers for step in _LOG_STEPS]
    between = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    return between if len(between) > 2 else _linear_ticks(low, high)


def _series_colours(chart: Chart) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(len(chart.series))]


def _y_position(value: float, low: float, high: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)


def _svg_rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _svg_line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {more}/>'


def _svg_text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(words)}</text>'
