"""Runs a benchmark piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from potluck.bench.benchmark import Benchmark, BenchmarkContext
from potluck.bench.benchmark_progress import BenchmarkProgress, RemainingTime
from potluck.bench.benchmark_report import BenchmarkReport, build_report
from potluck.bench.machine_info import describe_machine
from potluck.bench.piece_cache import PieceCache
from potluck.bench.piece_workers import measure_pieces

__all__ = ["run_benchmark"]


def run_benchmark(
    benchmark: Benchmark, context: BenchmarkContext, folder: Path, progress: BenchmarkProgress, resume: bool = False
) -> BenchmarkReport:
    """Measure every piece (or, to resume, those that are not there yet) and draw the sum."""
    benchmark.check_data(context)
    began = describe_machine()
    shelf = PieceCache(folder / ".cache" / benchmark.name, context, resume)
    pieces = benchmark.pieces(context)
    forecast = RemainingTime(pieces)
    found: dict[str, Mapping[str, Any]] = {}
    for piece in pieces:
        kept = shelf.find_result(piece)
        if kept is not None:
            forecast.count_reused(piece)
            found[piece.name] = kept

    def show_current(what: str) -> None:
        progress.show_piece(f"{benchmark.name}: {what}", len(found) + 1, len(pieces), forecast.seconds_left)

    try:
        for piece, result, seconds in measure_pieces(
            [piece for piece in pieces if piece.name not in found], show_current
        ):
            forecast.count_measured(piece, seconds)
            shelf.store_result(piece, result)
            found[piece.name] = result
    finally:
        progress.end_display()
    return build_report(benchmark, context, {piece.name: found[piece.name] for piece in pieces}, began)
