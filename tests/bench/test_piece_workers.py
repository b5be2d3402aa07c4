"""Pieces side by side, in processes."""

from __future__ import annotations

from functools import partial
from io import StringIO
from pathlib import Path

import pytest
import torch

from potluck.bench.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece
from potluck.bench.benchmark_figures import Figure
from potluck.bench.benchmark_progress import PlainProgress
from potluck.bench.benchmark_runner import run_benchmark
from potluck.bench.piece_workers import measure_pieces


def told(place: int) -> dict[str, int]:
    return {"place": place, "threads": torch.get_num_threads()}


def broken() -> dict[str, int]:
    raise ValueError("no such luck")


def _pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    beside = [BenchmarkPiece(f"p{place}", {}, partial(told, place), parallel=True) for place in range(3)]
    return [beside[0], BenchmarkPiece("alone", {}, partial(told, 7)), *beside[1:]]


def test_pieces_side_by_side_are_kept_in_their_order_with_one_thread_each(tmp_path: Path) -> None:
    benchmark = Benchmark("pairs", "", _pieces, lambda results: [_figure(results["p2"]["threads"])])
    lines = StringIO()
    found = run_benchmark(benchmark, BenchmarkContext(quick=True), tmp_path, PlainProgress(lines))
    assert found.figures[0].measured == 1
    said = lines.getvalue().splitlines()
    assert said[0].startswith("[1/4] pairs: 3 pieces")
    assert said[-2].startswith("[4/4] pairs: alone"), "those that cannot be side by side come last"
    nothing = StringIO()
    again = run_benchmark(benchmark, BenchmarkContext(quick=True), tmp_path, PlainProgress(nothing), resume=True)
    assert again.figures == found.figures
    assert "pairs: " not in nothing.getvalue(), "what is done is not done again"


def _figure(threads: int) -> Figure:
    return Figure(name="threads", unit="", measured=threads)


def test_what_goes_wrong_in_a_process_is_said() -> None:
    with pytest.raises(ValueError, match="no such luck"):
        list(measure_pieces([BenchmarkPiece("broken", {}, broken, parallel=True)], lambda what: None))
