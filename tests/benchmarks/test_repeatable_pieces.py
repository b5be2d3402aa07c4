"""Which pieces `--check` compares to the last digit: all that contain no time of this machine."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from benchmarks.benchmark import BenchmarkContext, BenchmarkPiece
from benchmarks.benchmark_catalogue import benchmark_names, find_benchmark
from benchmarks.benchmark_runner import measure_pieces
from benchmarks.overlap.overlap_forecast import forecast_case
from benchmarks.overlap.overlap_simulation import OverlapSetting, simulate_setting
from benchmarks.pipeline.pipeline_experiments import measure_replication
from benchmarks.pipeline.pipeline_learning import DIGITS, measure_fill

# The names of pieces with times of this machine; all others are repeatable.
TIMED = {
    "simulation": ".*", "overlap": "planning", "pipeline": "live crashes", "dropout": "step/.*|exploration",
    "decoupled": "none", "transport": ".*", "live": ".*", "streaming": "speed", "tasks": ".*/step-.*", "faults": ".*",
}  # fmt: skip


@pytest.mark.parametrize("name", benchmark_names())
@pytest.mark.parametrize("quick", [True, False])
def test_all_pieces_but_those_with_times_of_this_machine_are_compared(name: str, quick: bool) -> None:
    pieces = find_benchmark(name).pieces(BenchmarkContext(quick=quick))
    compared = {piece.name for piece in pieces if piece.parallel}
    assert compared == {piece.name for piece in pieces if not re.fullmatch(TIMED[name], piece.name)}
    for piece in pieces:
        if piece.parallel:
            pickle.dumps(piece)


def _simulate_overlap() -> Mapping[str, Any]:
    return simulate_setting(OverlapSetting("googlenet", 1e9), "duplex", 1.0)


WORK: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "forecast": partial(forecast_case, "vgg19", 16),
    "simulated": _simulate_overlap,
    "replication": partial(measure_replication, "wifi", batches=24),
    "fill": partial(measure_fill, DIGITS._replace(batches=40)),
}


def test_simulated_pieces_give_the_same_values_in_every_process() -> None:
    pieces = [
        BenchmarkPiece(f"{name}/{repeat}", {}, work, parallel=True) for name, work in WORK.items() for repeat in (0, 1)
    ]
    results = {piece.name: json.dumps(result) for piece, result, _ in measure_pieces(pieces, lambda line: None, 2)}
    here = {name: json.dumps(work()) for name, work in WORK.items()}
    assert results == {f"{name}/{repeat}": here[name] for name in WORK for repeat in (0, 1)}
