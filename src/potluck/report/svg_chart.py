"""Draws small line and bar charts as SVG without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape

__all__ = ["Chart", "ChartSeries", "draw_charts"]

_WIDTH, _HEIGHT = 520, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 34, 76
_LABEL_SPACING = 34.0  # minimum, along the x axis
_CHARACTER_WIDTH = 0.58  # in font sizes
_INK, _GRID = "#222222", "#dddddd"
_COLOURS = ("#1b6ca8", "#d1495b", "#3b8b4a", "#e09f3e", "#6d4c9f", "#5c6770", "#17a2a2")


@dataclass(frozen=True)
class ChartSeries:
    """Named values, one per x of `xs` in a line chart, one per group in a bar chart."""

    name: str
    ys: Sequence[float]
    xs: Sequence[float] = ()


@dataclass(frozen=True)
class Chart:
    """One pair of axes. `groups` makes it a bar chart; `marks` are named horizontal dashed lines."""

    title: str
    series: Sequence[ChartSeries]
    y_label: str
    x_label: str = ""
    groups: Sequence[str] = ()
    x_scale: Literal["linear", "log"] = "linear"
    marks: Sequence[tuple[str, float]] = ()


def draw_charts(charts: Sequence[Chart], columns: int = 2) -> str:
    """All charts in one SVG image, row by row."""
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
    yield _svg_text((_LEFT + _WIDTH) / 2, _HEIGHT - 38, chart.x_label, "middle")
    yield from _draw_bars(chart, low, high) if chart.groups else _draw_lines(chart, low, high)
    for name, value in chart.marks:
        y = _y_position(value, low, high)
        yield _svg_line(_LEFT, y, _WIDTH - _RIGHT, y, _INK, 'stroke-dasharray="5 4"')
        yield _svg_text(_WIDTH - _RIGHT, y - 4, name, "end")
    yield from _draw_legend(chart)


def _draw_lines(chart: Chart, low: float, high: float) -> Iterator[str]:
    xs = sorted({x for series in chart.series for x in series.xs})
    scaled = (lambda x: math.log(x)) if chart.x_scale == "log" else float
    first, last = scaled(xs[0]), scaled(xs[-1])
    at = {x: _LEFT + (_WIDTH - _LEFT - _RIGHT) * (scaled(x) - first) / ((last - first) or 1.0) for x in xs}
    labelled = -math.inf
    for x in xs:
        if at[x] - labelled >= _LABEL_SPACING:
            labelled = at[x]
            yield _svg_text(at[x], _HEIGHT - _BOTTOM + 16, f"{x:.2g}" if x < 100 else f"{x:.0f}", "middle")
    for colour, series in zip(_series_colours(chart), chart.series, strict=True):
        points = [(at[x], _y_position(y, low, high)) for x, y in zip(series.xs, series.ys, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>' for x, y in points)


def _draw_bars(chart: Chart, low: float, high: float) -> Iterator[str]:
    group = (_WIDTH - _LEFT - _RIGHT) / len(chart.groups)
    bar = 0.8 * group / len(chart.series)
    for number, name in enumerate(chart.groups):
        left = _LEFT + group * (number + 0.1)
        yield from _draw_group_name(name, left + 0.4 * group, group)
        for index, (colour, series) in enumerate(zip(_series_colours(chart), chart.series, strict=True)):
            zero, y = _y_position(0.0, low, high), _y_position(series.ys[number], low, high)
            x, top = left + index * bar, min(zero, y)
            yield _svg_rect(x, top, 0.9 * bar, abs(y - zero), colour)
            value = f"{series.ys[number]:.3g}" if bar > 24 else f"{series.ys[number]:.2g}"
            yield _svg_text(
                x + bar * 0.45, top - 4, value, "middle", f'font-size="{_fitting_font_size(value, bar):.1f}"'
            )


def _draw_group_name(name: str, x: float, width: float) -> Iterator[str]:
    """The name below a group of bars, on two lines if it does not fit on one."""
    lines = [name] if _fitting_font_size(name, width) > 9 else name.rsplit(" ", 1)
    size = min(_fitting_font_size(line, width) for line in lines)
    for number, line in enumerate(lines):
        yield _svg_text(x, _HEIGHT - _BOTTOM + 14 + 11 * number, line, "middle", f'font-size="{size:.1f}"')


def _fitting_font_size(text: str, width: float) -> float:
    """The largest font size at which the text fits the width."""
    return min(11.0, width / (_CHARACTER_WIDTH * len(text)))


def _draw_legend(chart: Chart) -> Iterator[str]:
    """The legend, wrapped into as many rows as needed."""
    x, y = float(_LEFT), _HEIGHT - 22.0
    for colour, series in zip(_series_colours(chart), chart.series, strict=True):
        width = 28 + 6.2 * len(series.name)
        if x > _LEFT and x + width > _WIDTH:
            x, y = float(_LEFT), y + 15
        yield _svg_rect(x, y - 9, 10, 10, colour)
        yield _svg_text(x + 14, y, series.name, "start")
        x += width


def _value_range(chart: Chart) -> tuple[float, float, list[float]]:
    """Lower end, upper end and ticks of the y axis, which always includes 0."""
    values = [y for series in chart.series for y in series.ys] + [value for _, value in chart.marks]
    low, high = min(0.0, *values), max(0.0, *values)
    rough = ((high - low) or 1.0) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step + 0.15)
    return first * step, last * step, [round(number * step, 10) for number in range(first, last + 1)]


def _series_colours(chart: Chart) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(len(chart.series))]


def _y_position(value: float, low: float, high: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)


def _svg_rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _svg_line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {more}/>'


def _svg_text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'
