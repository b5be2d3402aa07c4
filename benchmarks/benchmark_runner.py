"""Runs a benchmark piece by piece and keeps every finished piece, so that a stopped benchmark can resume.

Pieces that may run in parallel go to single-threaded worker processes; the others follow one by one.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import potluck
from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece
from benchmarks.benchmark_progress import BenchmarkProgress, RemainingTime
from benchmarks.benchmark_report import BenchmarkReport, build_report
from benchmarks.machine_info import describe_machine
from potluck.atomic_file import write_atomically
from potluck.worker_pool import worker_pool

__all__ = ["MeasuredPiece", "PieceCache", "measure_pieces", "run_benchmark", "use_one_thread"]

MeasuredPiece = tuple[BenchmarkPiece, Mapping[str, Any], float]  # a piece, its result, the seconds it accounts for


def run_benchmark(
    benchmark: Benchmark, context: BenchmarkContext, folder: Path, progress: BenchmarkProgress, resume: bool = False
) -> BenchmarkReport:
    """Measure every piece, or with `resume` those that have no stored result, and build the report."""
    benchmark.check_data(context)
    machine = describe_machine()
    cache = PieceCache(folder / ".cache" / benchmark.name, context, resume)
    pieces = benchmark.pieces(context)
    remaining = RemainingTime(pieces)
    results: dict[str, Mapping[str, Any]] = {}
    for piece in pieces:
        stored = cache.find_result(piece)
        if stored is not None:
            remaining.count_reused(piece)
            results[piece.name] = stored

    def show_current(activity: str) -> None:
        progress.show_piece(f"{benchmark.name}: {activity}", len(results) + 1, len(pieces), remaining.seconds_left)

    try:
        for piece, result, seconds in measure_pieces(
            [piece for piece in pieces if piece.name not in results], show_current
        ):
            remaining.count_measured(piece, seconds)
            cache.store_result(piece, result)
            results[piece.name] = result
    finally:
        progress.end_display()
    return build_report(benchmark, context, {piece.name: results[piece.name] for piece in pieces}, machine)


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
            result, seconds = future.result()
            yield piece, result, seconds / processes
            if done < len(pieces):
                show(f"{piece.name} is done, {processes} in parallel")


def use_one_thread() -> None:
    """Several threads per worker would compete for the cores, and sums would depend on their number."""
    import torch

    torch.set_num_threads(1)


def _measure_timed(piece: BenchmarkPiece) -> tuple[Mapping[str, Any], float]:
    start = time.perf_counter()
    result = piece.measure()
    return result, time.perf_counter() - start


# --- finished pieces -------------------------------------------------------------------------------------------------


class PieceCache:
    """A folder with the results of finished pieces; they are read only if `reuse` is set."""

    def __init__(self, folder: Path, context: BenchmarkContext, reuse: bool) -> None:
        self._folder = folder
        self._context = context
        self._reuse = reuse

    def find_result(self, piece: BenchmarkPiece) -> Mapping[str, Any] | None:
        """The stored result of an equal piece; None if it is missing, damaged or not to be reused."""
        if not self._reuse:
            return None
        try:
            stored: dict[str, Any] = json.loads(self.result_path(piece).read_text())["result"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return stored

    def store_result(self, piece: BenchmarkPiece, result: Mapping[str, Any]) -> None:
        content = {"piece": piece.name, "key": self._cache_key(piece), "result": result}
        path = self.result_path(piece)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")

    def result_path(self, piece: BenchmarkPiece) -> Path:
        digest = hashlib.blake2b(json.dumps(self._cache_key(piece), sort_keys=True).encode(), digest_size=10)
        return self._folder / f"{digest.hexdigest()}.json"

    def _cache_key(self, piece: BenchmarkPiece) -> dict[str, Any]:
        """Everything the result depends on."""
        return {
            "piece": piece.name,
            "parameters": dict(piece.parameters),
            "seed": self._context.seed,
            "version": potluck.__version__,
        }
