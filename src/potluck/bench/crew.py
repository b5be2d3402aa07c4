"""Pieces that may be worked on side by side, each in a process with one thread of its own."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from potluck.bench.experiment import Piece

__all__ = ["Done", "work_off"]

Done = tuple[Piece, Mapping[str, Any], float]  # a piece, its result, and its share of the time that passed


def work_off(pieces: Sequence[Piece], processes: int | None = None) -> Iterator[Done]:
    """Every piece with its result, in the order in which they are done; those that weigh most begin first."""
    if not pieces:
        return
    count = min(processes or os.cpu_count() or 1, len(pieces))
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_alone)
    try:
        begun = {pool.submit(_timed, piece): piece for piece in sorted(pieces, key=lambda piece: -piece.weight)}
        for future in as_completed(begun):
            result, seconds = future.result()
            yield begun[future], result, seconds / count
    finally:
        pool.shutdown(cancel_futures=True)


def _alone() -> None:
    """With threads of their own they would get in each other's way, and sums would depend on how many there are."""
    import torch

    torch.set_num_threads(1)


def _timed(piece: Piece) -> tuple[Mapping[str, Any], float]:
    start = time.perf_counter()
    result = piece.measure()
    return result, time.perf_counter() - start
