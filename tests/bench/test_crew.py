"""Pieces side by side, in processes."""

from __future__ import annotations

from functools import partial
from io import StringIO
from pathlib import Path

import pytest
import torch

from potluck.bench.crew import work_off
from potluck.bench.experiment import Benchmark, Context, Piece
from potluck.bench.figures import Figure
from potluck.bench.progress import Lines
from potluck.bench.runner import run


def told(place: int) -> dict[str, int]:
    return {"place": place, "threads": torch.get_num_threads()}


def broken() -> dict[str, int]:
    raise ValueError("no such luck")


def _pieces(context: Context) -> list[Piece]:
    beside = [Piece(f"p{place}", {}, partial(told, place), beside=True) for place in range(3)]
    return [beside[0], Piece("alone", {}, partial(told, 7)), *beside[1:]]


def test_pieces_side_by_side_are_kept_in_their_order_with_one_thread_each(tmp_path: Path) -> None:
    benchmark = Benchmark("pairs", "", _pieces, lambda results: [_figure(results["p2"]["threads"])])
    lines = StringIO()
    found = run(benchmark, Context(quick=True), tmp_path, Lines(lines))
    assert found.figures[0].measured == 1
    said = lines.getvalue().splitlines()
    assert said[0].startswith("[1/4] pairs: 3 pieces")
    assert said[-2].startswith("[4/4] pairs: alone"), "those that cannot be side by side come last"
    nothing = StringIO()
    again = run(benchmark, Context(quick=True), tmp_path, Lines(nothing), resume=True)
    assert again.figures == found.figures
    assert "pairs: " not in nothing.getvalue(), "what is done is not done again"


def _figure(threads: int) -> Figure:
    return Figure(name="threads", unit="", measured=threads)


def test_what_goes_wrong_in_a_process_is_said() -> None:
    with pytest.raises(ValueError, match="no such luck"):
        list(work_off([Piece("broken", {}, broken, beside=True)], lambda what: None))
