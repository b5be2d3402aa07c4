"""Works pieces off: those that may be side by side in processes with one thread each, the others one by one."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from potluck.bench.benchmark import BenchmarkPiece

__all__ = ["Done", "measure_pieces"]

Done = tuple[BenchmarkPiece, Mapping[str, Any], float]  # a piece, its result, and its share of the time that passed


def measure_pieces(
    pieces: Sequence[BenchmarkPiece], told: Callable[[str], None], processes: int | None = None
) -> Iterator[Done]:
    """Every piece with its result as it is done: those that may be side by side first, then the others in order.

    `told` hears what is under way.
    """
    yield from _measure_in_parallel(
        [piece for piece in pieces if piece.parallel], told, processes or os.cpu_count() or 1
    )
    for piece in pieces:
        if not piece.parallel:
            told(piece.name)
            yield piece, *_measure_timed(piece)


def _measure_in_parallel(
    pieces: Sequence[BenchmarkPiece], told: Callable[[str], None], processes: int
) -> Iterator[Done]:
    """Those that weigh most begin first."""
    if not pieces:
        return
    count = min(processes, len(pieces))
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_use_one_thread)
    try:
        begun = {
            pool.submit(_measure_timed, piece): piece for piece in sorted(pieces, key=lambda piece: -piece.expected_s)
        }
        told(f"{len(pieces)} pieces, {count} side by side")
        for done, future in enumerate(as_completed(begun), start=1):
            piece = begun[future]
            result, seconds = future.result()
            yield piece, result, seconds / count
            if done < len(pieces):
                told(f"{piece.name} is done, {count} side by side")
    finally:
        pool.shutdown(cancel_futures=True)


def _use_one_thread() -> None:
    """With threads of their own they would get in each other's way, and sums would depend on how many there are."""
    import torch

    torch.set_num_threads(1)


def _measure_timed(piece: BenchmarkPiece) -> tuple[Mapping[str, Any], float]:
    start = time.perf_counter()
    result = piece.measure()
    return result, time.perf_counter() - start
