"""What is kept of a benchmark: its figures, and all that one needs to judge and repeat them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from potluck.bench.benchmark import Benchmark, BenchmarkContext, Results
from potluck.bench.benchmark_figures import Figure, format_value
from potluck.bench.machine_info import describe_machine, package_versions
from potluck.bench.piece_cache import write_atomically
from potluck.bench.svg_chart import Chart, draw_charts

__all__ = ["BenchmarkReport", "build_report", "figures_table"]

_QUICK = "QUICK: a smaller workload; for numbers to quote, run --full"


@dataclass(frozen=True)
class BenchmarkReport:
    """A finished benchmark."""

    document: dict[str, Any]
    figures: Sequence[Figure]
    charts: Sequence[Chart]

    @property
    def name(self) -> str:
        return str(self.document["name"])

    @property
    def missed_figures(self) -> list[Figure]:
        """The figures whose goal does not hold."""
        return [figure for figure in self.figures if figure.meets_goal is False]

    def write_files(self, folder: Path) -> list[Path]:
        """NAME.json and, if there is anything to draw, NAME.svg."""
        places = [folder / f"{self.name}.json"]
        write_atomically(places[0], json.dumps(self.document, indent=1, ensure_ascii=False) + "\n")
        if self.charts:
            places.append(folder / f"{self.name}.svg")
            write_atomically(places[1], draw_charts(self.charts))
        return places


def build_report(
    benchmark: Benchmark, context: BenchmarkContext, results: Results, began: dict[str, Any]
) -> BenchmarkReport:
    """Figures and charts from the results of all pieces; `began` is the machine as it was at the start."""
    figures = benchmark.figures(results)
    document = {
        "name": benchmark.name,
        "summary": benchmark.summary,
        "mode": "quick" if context.quick else "full",
        "command": f"potluck bench {benchmark.name} {'--quick' if context.quick else '--full'} --seed {context.seed}",
        "seed": context.seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": package_versions(),
        "machine": {**began, "load_at_end": describe_machine()["load"]},
        "notes": list(benchmark.notes),
        "figures": [figure.as_table() for figure in figures],
        "pieces": {name: dict(result) for name, result in results.items()},
    }
    return BenchmarkReport(document, figures, benchmark.charts(results))


def figures_table(found: BenchmarkReport) -> str:
    """The figures as text: figure, published, goal, measured, held; sources and notes below."""
    rows = [("figure", "published", "goal", "measured", "held"), *map(_figure_row, found.figures)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("─" * width for width in widths))
    quick = [_QUICK] if found.document["mode"] == "quick" else []
    title = f"{found.name}: {found.document['summary']}"
    return "\n".join([title, *quick, "", *lines, "", *_source_remarks(found), *quick])


def _figure_row(figure: Figure) -> tuple[str, ...]:
    published = f"{format_value(figure.published.value)} {figure.unit}" if figure.published else "-"
    goal = f"{figure.goal.comparison} {format_value(figure.goal.value)} {figure.unit}" if figure.goal else "-"
    held = {None: "-", True: "yes", False: "NO"}[figure.meets_goal]
    return (figure.name, published.rstrip(), goal.rstrip(), _measured_text(figure), held)


def _measured_text(figure: Figure) -> str:
    value = f"{format_value(figure.measured)} {figure.unit}".rstrip()
    if figure.spread is None or figure.spread.repeats == 1:
        return value
    spread = figure.spread
    return f"{value} ({format_value(spread.low)} to {format_value(spread.high)}, {spread.repeats} repeats)"


def _source_remarks(found: BenchmarkReport) -> list[str]:
    sources = dict.fromkeys(figure.published.source for figure in found.figures if figure.published)
    notes = [f"{figure.name}: {figure.note}" for figure in found.figures if figure.note]
    return [*(f"published: {source}" for source in sources), *notes, *found.document["notes"]]
