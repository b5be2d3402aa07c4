"""Runs a benchmark piece by piece and keeps every finished piece, so that a stopped benchmark can resume.

Pieces that may run in parallel go to single-threaded worker processes; the others follow one by one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece
from benchmarks.benchmark_progress import BenchmarkProgress, RemainingTime
from benchmarks.benchmark_report import BenchmarkReport, build_report
from benchmarks.machine_info import LoadSampler, describe_revision
from benchmarks.measured_code import code_digest
from benchmarks.piece_store import PieceStore, StoredPiece
from potluck.worker_pool import worker_pool

__all__ = [
    "MeasuredPiece",
    "bind_needs",
    "measure_pieces",
    "run_benchmark",
    "use_one_thread",
]

Measurement = Mapping[str, Any]  # when it was measured, how many seconds it accounts for, and the load meanwhile
MeasuredPiece = tuple[BenchmarkPiece, Mapping[str, Any], Measurement]


def run_benchmark(
    benchmark: Benchmark,
    context: BenchmarkContext,
    folder: Path,
    progress: BenchmarkProgress,
    resume: bool | None = None,
) -> BenchmarkReport:
    """Measure every piece, or with `resume` those that have no stored result, and build the report.

    If `resume` is None, the benchmark says whether stored results are reused.
    """
    benchmark.check_data(context)
    code = code_digest(benchmark.code_paths)
    store = PieceStore(folder, benchmark.name, context, code, benchmark.resumes if resume is None else resume)
    pieces = benchmark.pieces(context)
    remaining = RemainingTime(pieces)
    stored: dict[str, StoredPiece] = {}
    for piece in pieces:
        if found := store.find_result(piece):
            remaining.count_reused(piece)
            stored[piece.name] = found

    def show_current(activity: str) -> None:
        progress.show_piece(f"{benchmark.name}: {activity}", len(stored) + 1, len(pieces), remaining.seconds_left)

    missing = [piece for piece in pieces if piece.name not in stored]
    try:
        for needy in (False, True):
            results = {name: piece.result for name, piece in stored.items()}
            stage = [bind_needs(piece, results) for piece in missing if bool(piece.needs) == needy]
            for piece, result, measurement in measure_pieces(stage, show_current):
                remaining.count_measured(piece, measurement["seconds"])
                stored[piece.name] = StoredPiece(
                    result, {**measurement, **describe_revision(), **store.identity(piece)}
                )
                store.add_piece(piece.name, stored[piece.name])
    finally:
        progress.end_display()
    ordered = {piece.name: stored[piece.name] for piece in pieces}
    return build_report(benchmark, context, code, ordered)


def bind_needs(piece: BenchmarkPiece, results: Mapping[str, Mapping[str, Any]]) -> BenchmarkPiece:
    """The piece with the results that it needs as its argument."""
    if not piece.needs:
        return piece
    return replace(piece, measure=partial(piece.measure, {name: results[name] for name in piece.needs}))


# --- measuring -------------------------------------------------------------------------------------------------------


def measure_pieces(
    pieces: Sequence[BenchmarkPiece], show: Callable[[str], None], processes: int | None = None
) -> Iterator[MeasuredPiece]:
    """Yield every piece with its result as it finishes: the parallel ones first, then the others in order."""
    parallel = [piece for piece in pieces if piece.parallel]
    if parallel:
        yield from _measure_in_parallel(parallel, show, min(processes or os.cpu_count() or 1, len(parallel)))
    for piece in pieces:
        if not piece.parallel:
            show(piece.name)
            yield piece, *_measure_timed(piece)


def _measure_in_parallel(
    pieces: Sequence[BenchmarkPiece], show: Callable[[str], None], processes: int
) -> Iterator[MeasuredPiece]:
    """The longest pieces start first."""
    longest_first = sorted(pieces, key=lambda piece: -piece.expected_s)
    with worker_pool(processes, use_one_thread) as pool:
        submitted = {pool.submit(_measure_timed, piece): piece for piece in longest_first}
        show(f"{len(pieces)} pieces, {processes} in parallel")
        for done, future in enumerate(as_completed(submitted), start=1):
            piece = submitted[future]
            result, measurement = future.result()
            yield piece, result, {**measurement, "seconds": measurement["seconds"] / processes}
            if done < len(pieces):
                show(f"{piece.name} is done, {processes} in parallel")


def use_one_thread() -> None:
    """Several threads per worker would compete for the cores, and sums would depend on their number."""
    import torch

    torch.set_num_threads(1)


def _measure_timed(piece: BenchmarkPiece) -> tuple[Mapping[str, Any], Measurement]:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    with LoadSampler() as load:
        result = piece.measure()
        summary = load.summary()
    return result, {"date": date, "seconds": summary["seconds"], "load": summary}
