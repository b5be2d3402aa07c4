"""What is kept of a benchmark: its figures, and all that one needs to judge and repeat them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from potluck.bench.chart import Chart, draw
from potluck.bench.experiment import Benchmark, Context, Results
from potluck.bench.figures import Figure, written
from potluck.bench.machine import machine, versions
from potluck.bench.shelf import write_aside

__all__ = ["Report", "report", "table"]

_QUICK = "QUICK: a smaller workload; for numbers to quote, run --full"


@dataclass(frozen=True)
class Report:
    """A finished benchmark."""

    document: dict[str, Any]
    figures: Sequence[Figure]
    charts: Sequence[Chart]

    @property
    def name(self) -> str:
        return str(self.document["name"])

    @property
    def missed(self) -> list[Figure]:
        """The figures whose goal does not hold."""
        return [figure for figure in self.figures if figure.held is False]

    def write(self, folder: Path) -> list[Path]:
        """NAME.json and, if there is anything to draw, NAME.svg."""
        places = [folder / f"{self.name}.json"]
        write_aside(places[0], json.dumps(self.document, indent=1, ensure_ascii=False) + "\n")
        if self.charts:
            places.append(folder / f"{self.name}.svg")
            write_aside(places[1], draw(self.charts))
        return places


def report(benchmark: Benchmark, context: Context, results: Results, began: dict[str, Any]) -> Report:
    """Figures and charts from the results of all pieces; `began` is the machine as it was at the start."""
    figures = benchmark.figures(results)
    document = {
        "name": benchmark.name,
        "summary": benchmark.summary,
        "mode": "quick" if context.quick else "full",
        "command": f"potluck bench {benchmark.name} {'--quick' if context.quick else '--full'} --seed {context.seed}",
        "seed": context.seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": {**began, "load_at_end": machine()["load"]},
        "notes": list(benchmark.notes),
        "figures": [figure.as_table() for figure in figures],
        "pieces": {name: dict(result) for name, result in results.items()},
    }
    return Report(document, figures, benchmark.charts(results))


def table(found: Report) -> str:
    """The figures as text: figure, published, goal, measured, held; sources and notes below."""
    rows = [("figure", "published", "goal", "measured", "held"), *map(_row, found.figures)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("─" * width for width in widths))
    quick = [_QUICK] if found.document["mode"] == "quick" else []
    title = f"{found.name}: {found.document['summary']}"
    return "\n".join([title, *quick, "", *lines, "", *_remarks(found), *quick])


def _row(figure: Figure) -> tuple[str, ...]:
    published = f"{written(figure.published.value)} {figure.unit}" if figure.published else "-"
    goal = f"{figure.goal.comparison} {written(figure.goal.value)} {figure.unit}" if figure.goal else "-"
    held = {None: "-", True: "yes", False: "NO"}[figure.held]
    return (figure.name, published.rstrip(), goal.rstrip(), _measured(figure), held)


def _measured(figure: Figure) -> str:
    value = f"{written(figure.measured)} {figure.unit}".rstrip()
    if figure.spread is None or figure.spread.repeats == 1:
        return value
    return f"{value} ({written(figure.spread.low)} to {written(figure.spread.high)}, {figure.spread.repeats} repeats)"


def _remarks(found: Report) -> list[str]:
    sources = dict.fromkeys(figure.published.source for figure in found.figures if figure.published)
    notes = [f"{figure.name}: {figure.note}" for figure in found.figures if figure.note]
    return [*(f"published: {source}" for source in sources), *notes, *found.document["notes"]]
