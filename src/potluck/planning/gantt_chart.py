"""Gantt charts of a plan: bars as plain data, and a text drawing of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from potluck.errors import UserError
from potluck.planning.segments.segment_costs import check_layer_seconds, check_seconds
from potluck.planning.segments.segment_plan import SegmentPlan

__all__ = ["GanttBar", "draw_gantt", "segment_bars"]

_FILLS = "█▒"
_MIN_COLUMNS = 10


class GanttBar(NamedTuple):
    """Occupies a row from `start` to `end` seconds."""

    row: str
    start: float
    end: float
    label: str = ""


def segment_bars(
    plan: SegmentPlan, compute: Iterable[float], transfer: Iterable[float], overhead: float, latency: float = 0.0
) -> list[GanttBar]:
    """The plan's segments on row `pull` or `push`, and its layers, by index, on row `forward` or `backward`."""
    check_seconds(overhead=overhead, latency=latency)
    computing, moving = check_layer_seconds(compute, transfer)
    if len(computing) != plan.layers:
        raise UserError(
            f"the plan has {plan.layers} layers and the times have {len(computing)}; pass the times it was made from"
        )
    return (_pull_bars if plan.direction == "pull" else _push_bars)(plan, computing, moving, overhead, latency)


def _pull_bars(
    plan: SegmentPlan, compute: Sequence[float], transfer: Sequence[float], overhead: float, latency: float
) -> list[GanttBar]:
    link = device = 0.0
    bars = []
    for first, last in plan.segments:
        start, link = link, link + overhead + sum(transfer[first : last + 1])
        bars.append(GanttBar("pull", start, link, _span_label(first, last)))
        layers = _layer_bars("forward", max(device, link + latency), compute, range(first, last + 1))
        device = layers[-1].end
        bars += layers
    return bars


def _push_bars(
    plan: SegmentPlan, compute: Sequence[float], transfer: Sequence[float], overhead: float, latency: float
) -> list[GanttBar]:
    """Bars of a push. Its latency comes after the last bar, when neither link nor device is busy."""
    link = device = 0.0
    bars = []
    for first, last in plan.segments:
        layers = _layer_bars("backward", device, compute, range(last, first - 1, -1))
        device = layers[-1].end
        start = max(link, device)
        link = start + overhead + sum(transfer[first : last + 1])
        bars += [*layers, GanttBar("push", start, link, _span_label(first, last))]
    return bars


def _layer_bars(row: str, begin: float, seconds: Sequence[float], layers: range) -> list[GanttBar]:
    moments = accumulate((seconds[layer] for layer in layers), initial=begin)
    return [
        GanttBar(row, start, end, str(layer)) for layer, (start, end) in zip(layers, pairwise(moments), strict=True)
    ]


def _span_label(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def draw_gantt(bars: Sequence[GanttBar], width: int = 100) -> str:
    """One line per row, in order of appearance, and a time axis; labels appear where they fit."""
    if not bars:
        return ""
    names = list(dict.fromkeys(bar.row for bar in bars))
    margin = max(map(len, names)) + 1
    columns = max(width - margin, _MIN_COLUMNS)
    begin, end = min(bar.start for bar in bars), max(bar.end for bar in bars)
    scale = columns / (end - begin) if end > begin else 0.0
    lines = [
        name.ljust(margin) + _draw_row([bar for bar in bars if bar.row == name], begin, scale, columns)
        for name in names
    ]
    return "\n".join([*lines, " " * margin + _time_axis(begin, end, columns)])


def _draw_row(bars: Sequence[GanttBar], begin: float, scale: float, columns: int) -> str:
    cells = [" "] * columns
    for number, bar in enumerate(sorted(bars, key=lambda bar: (bar.start, bar.end))):
        if bar.end <= bar.start:
            continue
        left = min(round((bar.start - begin) * scale), columns - 1)
        right = max(round((bar.end - begin) * scale), left + 1)
        cells[left:right] = _fill_bar(bar.label, right - left, _FILLS[number % len(_FILLS)])
    return "".join(cells).rstrip()


def _fill_bar(label: str, length: int, fill: str) -> str:
    return label.center(length, fill) if len(label) + 2 <= length else fill * length


def _time_axis(begin: float, end: float, columns: int) -> str:
    left, right = _axis_label(begin), _axis_label(end)
    return left + right.rjust(columns - len(left))


def _axis_label(seconds: float) -> str:
    for unit, scale in (("µs", 1e-6), ("ms", 1e-3)):
        if 0 < seconds < 0.9995e3 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"
