"""Figures of a run for notebooks: a chart for each metric, and a short summary."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from potluck.atomic_file import write_atomically
from potluck.report.svg_chart import Chart, ChartSeries, draw_charts
from potluck.units import format_metric, format_seconds

__all__ = ["MetricCurve", "SvgFigure", "draw_matplotlib", "draw_svg", "summary_html"]


class MetricCurve(NamedTuple):
    """A quantity over rounds."""

    name: str
    rounds: Sequence[float]
    values: Sequence[float]
    better: str = ""  # "higher" or "lower", if known

    @property
    def panel(self) -> str:
        """The chart it belongs to: the loss of training and that of held-out data share one."""
        return "loss" if self.name in ("loss", "test_loss") else self.name.removeprefix("test_")

    @property
    def title(self) -> str:
        return f"{self.panel} ({self.better} is better)" if self.better else self.panel


@dataclass(frozen=True)
class SvgFigure:
    """A picture that notebooks display and that can be saved."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: Path | str) -> Path:
        write_atomically(Path(path), self.svg.encode())
        return Path(path)


def _panels(curves: Sequence[MetricCurve]) -> dict[str, list[MetricCurve]]:
    panels: dict[str, list[MetricCurve]] = {}
    for curve in sorted(curves, key=lambda curve: curve.panel == "loss"):
        panels.setdefault(curve.panel, []).append(curve)
    return panels


def draw_svg(curves: Sequence[MetricCurve]) -> SvgFigure:
    """One chart for each metric."""
    charts = [
        Chart(lines[-1].title, [ChartSeries(line.name, line.values, line.rounds) for line in lines], name, "round")
        for name, lines in _panels(curves).items()
    ]
    return SvgFigure(draw_charts(charts) if charts else '<svg xmlns="http://www.w3.org/2000/svg"/>')


def draw_matplotlib(curves: Sequence[MetricCurve]) -> Any:
    """The same as a figure of matplotlib; ImportError if that is not installed."""
    import matplotlib.pyplot as plt  # type: ignore[import-not-found, unused-ignore]

    panels = _panels(curves)
    columns = min(2, max(1, len(panels)))
    rows = -(-max(1, len(panels)) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5 * columns, 3.2 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (name, lines) in zip(axes.flat, panels.items(), strict=False):
        for line in lines:
            axis.plot(line.rounds, line.values, label=line.name)
        axis.set(title=lines[-1].title, xlabel="round", ylabel=name)
        if len(lines) > 1:
            axis.legend()
    plt.close(figure)  # a notebook shows it as the value of a cell, and not a second time
    return figure


def summary_html(summary: Mapping[str, Any], curves: Sequence[MetricCurve]) -> str:
    """How the run ended, its figures and its charts, in a few lines."""
    score = summary.get("metrics") or {"accuracy": summary.get("accuracy"), "loss": summary.get("loss")}
    figures = [(name, format_metric(name, value)) for name, value in score.items() if value is not None]
    if (best := summary.get("best")) is not None:
        text = format_metric(best["metric"], best["value"])
        figures.append((f"best {best['metric']}", f"{text} after {best['round']} rounds"))
    figures += [
        ("rounds", str(summary["rounds"])),
        ("time", format_seconds(summary["time_s"])),
        ("traffic", f"{summary['bytes']:,} bytes"),
    ]
    cells = "".join(
        f'<td style="text-align:left;padding-right:1.5em"><small>{html.escape(name)}</small><br><b>{html.escape(value)}'
        "</b></td>"
        for name, value in figures
    )
    title = html.escape(f"{summary['name']}, {summary['recipe']}: {summary['status']}, {summary['reason']}")
    chart = f'<div style="overflow-x:auto">{draw_svg(curves).svg}</div>' if curves else ""
    return f"<div><b>{title}</b><table><tr>{cells}</tr></table>{chart}</div>"
