"""Who is busy when: bars as plain data, and a drawing of them in text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from potluck.errors import UserError
from potluck.planning.segments.segment_costs import check_layer_seconds, check_seconds
from potluck.planning.segments.segment_plan import SegmentPlan

__all__ = ["GanttBar", "draw_gantt", "segment_bars"]

_FILLS = "█▒"
_LEAST_COLUMNS = 10


class GanttBar(NamedTuple):
    """Something that occupies a row from `start` to `end` seconds."""

    row: str
    start: float
    end: float
    label: str = ""


def segment_bars(
    plan: SegmentPlan, compute: Iterable[float], transfer: Iterable[float], overhead: float, latency: float = 0.0
) -> list[GanttBar]:
    """A plan's segments on the row `pull` or `push`, and its layers by number on the row `forward` or `backward`."""
    check_seconds(overhead=overhead, latency=latency)
    computing, moving = check_layer_seconds(compute, transfer)
    if len(computing) != plan.layers:
        raise UserError(
            f"the plan has {plan.layers} layers and the times {len(computing)}; give the times it was made from"
        )
    return (_pull_bars if plan.direction == "pull" else _push_bars)(plan, computing, moving, overhead, latency)


def _pull_bars(
    plan: SegmentPlan, compute: Sequence[float], transfer: Sequence[float], overhead: float, latency: float
) -> list[GanttBar]:
    link = device = 0.0
    drawn = []
    for first, last in plan.segments:
        begun, link = link, link + overhead + sum(transfer[first : last + 1])
        drawn.append(GanttBar("pull", begun, link, _span_label(first, last)))
        layers = _layer_bars("forward", max(device, link + latency), compute, range(first, last + 1))
        device = layers[-1].end
        drawn += layers
    return drawn


def _push_bars(
    plan: SegmentPlan, compute: Sequence[float], transfer: Sequence[float], overhead: float, latency: float
) -> list[GanttBar]:
    """The latency of a push comes after its last bar: by then nothing here is busy."""
    link = device = 0.0
    drawn = []
    for first, last in plan.segments:
        layers = _layer_bars("backward", device, compute, range(last, first - 1, -1))
        device = layers[-1].end
        begun = max(link, device)
        link = begun + overhead + sum(transfer[first : last + 1])
        drawn += [*layers, GanttBar("push", begun, link, _span_label(first, last))]
    return drawn


def _layer_bars(row: str, start: float, seconds: Sequence[float], layers: range) -> list[GanttBar]:
    moments = accumulate((seconds[layer] for layer in layers), initial=start)
    return [
        GanttBar(row, begun, end, str(layer)) for layer, (begun, end) in zip(layers, pairwise(moments), strict=True)
    ]


def _span_label(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def draw_gantt(drawn: Sequence[GanttBar], width: int = 100) -> str:
    """One line per row in order of appearance, neighbours in two shades, labels where they fit, and a time axis."""
    if not drawn:
        return ""
    names = list(dict.fromkeys(bar.row for bar in drawn))
    margin = max(map(len, names)) + 1
    columns = max(width - margin, _LEAST_COLUMNS)
    begin, end = min(bar.start for bar in drawn), max(bar.end for bar in drawn)
    scale = columns / (end - begin) if end > begin else 0.0
    lines = [
        name.ljust(margin) + _draw_row([bar for bar in drawn if bar.row == name], begin, scale, columns)
        for name in names
    ]
    return "\n".join([*lines, " " * margin + _time_axis(begin, end, columns)])


def _draw_row(drawn: Sequence[GanttBar], begin: float, scale: float, columns: int) -> str:
    cells = [" "] * columns
    for number, bar in enumerate(sorted(drawn, key=lambda bar: (bar.start, bar.end))):
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
