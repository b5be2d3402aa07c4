"""Runs a benchmark piece by piece."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    results: dict[str, Mapping[str, Any]] = {}
    try:
        for place, piece in enumerate(pieces, start=1):
            kept = shelf.find(piece)
            if kept is not None:
                forecast.reused(piece)
                results[piece.name] = kept
                continue
            progress.begin(f"{benchmark.name}: {piece.name}", place, len(pieces), forecast.seconds_left)
            start = time.perf_counter()
            results[piece.name] = piece.measure()
            forecast.measured(piece, time.perf_counter() - start)
            shelf.put(piece, results[piece.name])
    finally:
        progress.end()
    return report(benchmark, context, results, began)
