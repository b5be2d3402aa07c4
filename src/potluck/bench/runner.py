"""Runs a benchmark piece by piece: those that may be side by side first, then the others one by one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from potluck.bench.crew import Done, work_off
from potluck.bench.experiment import Benchmark, Context, Piece
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

    def told(piece: Piece) -> None:
        progress.begin(f"{benchmark.name}: {piece.name}", len(found) + 1, len(pieces), forecast.seconds_left)

    def keep(done: Iterable[Done]) -> None:
        for piece, result, seconds in done:
            forecast.measured(piece, seconds)
            shelf.put(piece, result)
            found[piece.name] = result
            if piece.beside:
                told(piece)

    left = [piece for piece in pieces if piece.name not in found]
    try:
        keep(work_off([piece for piece in left if piece.beside]))
        for piece in left:
            if not piece.beside:
                told(piece)
                keep(_one(piece))
    finally:
        progress.end()
    return report(benchmark, context, {piece.name: found[piece.name] for piece in pieces}, began)


def _one(piece: Piece) -> Iterator[Done]:
    start = time.perf_counter()
    result = piece.measure()
    yield piece, result, time.perf_counter() - start
