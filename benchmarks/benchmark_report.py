"""The report of a benchmark: its figures, and what is needed to judge and repeat them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Benchmark, BenchmarkContext, Results
from benchmarks.benchmark_figures import Figure
from benchmarks.machine_info import describe_machine, describe_revision, package_versions
from benchmarks.piece_store import StoredPiece, unfinished_path
from potluck.atomic_file import write_atomically
from potluck.report.svg_chart import Chart, draw_charts

__all__ = ["BenchmarkReport", "build_report", "figures_table", "redraw_report"]

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
        """Write NAME.json, which replaces the file of unfinished pieces, and, if there are charts, NAME.svg."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.name}.json"]
        write_atomically(paths[0], json.dumps(self.document, indent=1, ensure_ascii=False).encode() + b"\n")
        unfinished_path(folder, self.name, self.document["mode"]).unlink(missing_ok=True)
        if self.charts:
            paths.append(folder / f"{self.name}.svg")
            write_atomically(paths[1], draw_charts(self.charts).encode())
        return paths


def build_report(
    benchmark: Benchmark, context: BenchmarkContext, code: str, stored: Mapping[str, StoredPiece]
) -> BenchmarkReport:
    """Compute figures and charts from the results of all pieces, which were measured with the code of that digest."""
    results = {name: piece.result for name, piece in stored.items()}
    measurements = {name: dict(piece.measurement) for name, piece in stored.items()}
    now = describe_revision()
    document = {
        "name": benchmark.name,
        "summary": benchmark.summary,
        "mode": context.mode,
        "command": benchmark.command_line(context),
        "seed": context.seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": now["commit"],
        "clean": all(each["clean"] for each in (now, *measurements.values())),
        "code": {"paths": list(benchmark.code_paths), "digest": code},
        "load": _overall_load(list(measurements.values())),
        "versions": package_versions(),
        "machine": describe_machine(),
        "pieces": {name: dict(result) for name, result in results.items()},
        "measurements": measurements,
    }
    return redraw_report(benchmark, document)


def redraw_report(benchmark: Benchmark, document: Mapping[str, Any]) -> BenchmarkReport:
    """Compute figures and charts from the recorded pieces; commit, code and load stay those of the measurement."""
    results: Results = document["pieces"]
    figures = benchmark.figures(results)
    tables = {"notes": list(benchmark.notes), "figures": [figure.as_table() for figure in figures]}
    return BenchmarkReport({**document, **tables}, figures, benchmark.charts(results))


def _overall_load(measurements: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The load of the machine over all pieces: before the first, the mean by time, the most, after the last."""
    loads = [each["load"] for each in sorted(measurements, key=lambda each: str(each["date"]))]
    seconds = sum(load["seconds"] for load in loads)
    mean = sum(load["mean"] * load["seconds"] for load in loads) / seconds if seconds else loads[0]["mean"]
    return {
        "before": loads[0]["before"],
        "mean": round(mean, 2),
        "most": max(load["most"] for load in loads),
        "after": loads[-1]["after"],
    }


def figures_table(report: BenchmarkReport) -> str:
    """The figures as a text table, with sources and notes below it."""
    rows = [("figure", "published", "goal", "measured", "executed", "met"), *map(_figure_row, report.figures)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("─" * width for width in widths))
    quick = [_QUICK] if report.document["mode"] == "quick" else []
    title = f"{report.name}: {report.document['summary']}"
    return "\n".join([title, *quick, "", *lines, "", *_source_remarks(report), *quick])


def _figure_row(figure: Figure) -> tuple[str, ...]:
    met = {None: "-", True: "yes", False: "NO"}[figure.meets_goal]
    published, goal = figure.published_text or "-", figure.goal_text or "-"
    return (figure.name, published, goal, figure.measured_text, figure.executed, met)


def _source_remarks(report: BenchmarkReport) -> list[str]:
    sources = dict.fromkeys(figure.published.source for figure in report.figures if figure.published)
    notes = [f"{figure.name}: {figure.note}" for figure in report.figures if figure.note]
    return [*(f"published: {source}" for source in sources), *notes, *report.document["notes"]]
