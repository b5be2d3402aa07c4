"""Runs a benchmark piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from potluck.bench.crew import work_off
from potluck.bench.experiment import Benchmark, Context
from potluck.bench.machine import machine
from potluck.bench.progress import Forecast, Progress
from potluck.bench.report import Report, report
from potluck.bench.shelf import Shelf

__all__ = ["run"]


def run(benchmark: Benchmark, context: Context, folder: Path, progress: Progress, resume: bool = False) -> Report:
    """Measure every piece (or, to resume, those that are not there yet) and draw the sum."""
    benchmark.check_data(context)
    began = machine()
    shelf = Shelf(folder / ".cache" / benchmark.name, context, resume)
    pieces = benchmark.pieces(context)
    forecast = Forecast(pieces)
    found: dict[str, Mapping[str, Any]] = {}
    for piece in pieces:
        kept = shelf.find(piece)
        if kept is not None:
            forecast.reused(piece)
            found[piece.name] = kept

    def told(what: str) -> None:
        progress.begin(f"{benchmark.name}: {what}", len(found) + 1, len(pieces), forecast.seconds_left)

    try:
        for piece, result, seconds in work_off([piece for piece in pieces if piece.name not in found], told):
            forecast.measured(piece, seconds)
            shelf.put(piece, result)
            found[piece.name] = result
    finally:
        progress.end()
    return report(benchmark, context, {piece.name: found[piece.name] for piece in pieces}, began)
