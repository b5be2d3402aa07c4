"""The report of a benchmark: its figures, and what is needed to judge and repeat them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Benchmark, BenchmarkContext, Results
from benchmarks.benchmark_figures import Figure
from benchmarks.machine_info import describe_machine, package_versions
from potluck.atomic_file import write_atomically
from potluck.report.svg_chart import Chart, draw_charts

__all__ = ["BenchmarkReport", "build_report", "figures_table"]

_QUICK = "QUICK: a smaller workload; run --full for figures to quote"


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
        """The figures that miss their goal."""
        return [figure for figure in self.figures if figure.meets_goal is False]

    def write_files(self, folder: Path) -> list[Path]:
        """Write NAME.json and, if there are charts, NAME.svg; return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.name}.json"]
        write_atomically(paths[0], json.dumps(self.document, indent=1, ensure_ascii=False).encode() + b"\n")
        if self.charts:
            paths.append(folder / f"{self.name}.svg")
            write_atomically(paths[1], draw_charts(self.charts).encode())
        return paths


def build_report(
    benchmark: Benchmark, context: BenchmarkContext, results: Results, machine: dict[str, Any]
) -> BenchmarkReport:
    """Compute figures and charts from the results of all pieces; `machine` describes it at the start."""
    figures = benchmark.figures(results)
    document = {
        "name": benchmark.name,
        "summary": benchmark.summary,
        "mode": "quick" if context.quick else "full",
        "command": f"potluck bench {benchmark.name} {'--quick' if context.quick else '--full'} --seed {context.seed}",
        "seed": context.seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": package_versions(),
        "machine": {**machine, "load_at_end": describe_machine()["load"]},
        "notes": list(benchmark.notes),
        "figures": [figure.as_table() for figure in figures],
        "pieces": {name: dict(result) for name, result in results.items()},
    }
    return BenchmarkReport(document, figures, benchmark.charts(results))


def figures_table(report: BenchmarkReport) -> str:
    """The figures as a text table, with sources and notes below it."""
    rows = [("figure", "published", "goal", "measured", "met"), *map(_figure_row, report.figures)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("─" * width for width in widths))
    quick = [_QUICK] if report.document["mode"] == "quick" else []
    title = f"{report.name}: {report.document['summary']}"
    return "\n".join([title, *quick, "", *lines, "", *_source_remarks(report), *quick])


def _figure_row(figure: Figure) -> tuple[str, ...]:
    met = {None: "-", True: "yes", False: "NO"}[figure.meets_goal]
    return (figure.name, figure.published_text or "-", figure.goal_text or "-", figure.measured_text, met)


def _source_remarks(report: BenchmarkReport) -> list[str]:
    sources = dict.fromkeys(figure.published.source for figure in report.figures if figure.published)
    notes = [f"{figure.name}: {figure.note}" for figure in report.figures if figure.note]
    return [*(f"published: {source}" for source in sources), *notes, *report.document["notes"]]
