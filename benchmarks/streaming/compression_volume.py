"""Compression: what the paper's rule sends for each ratio and threshold, and what a graded ratio with feedback does."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.benchmark import BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_figures import Figure, Goal, figure_of_repeats
from benchmarks.streaming import codec_volume, compression_speed
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = ["CODECS", "build_charts", "compute_figures", "declare_pieces"]

RATIOS = (0.1, 0.01)
DELTAS = (0.1, 0.2, 0.3, 0.4)
_BEST = "graded, error feedback"
_PICTURES = "CIFAR-10, "
_BYTES = ("dense_bytes", "pushed_bytes")


def _adaptive_name(ratio: float, delta: float) -> str:
    return f"CR {ratio:g}, δ {delta:g}"


CODECS: Mapping[str, Mapping[str, Any]] = {
    "dense": {"kind": "dense"},
    **{
        _adaptive_name(ratio, delta): {"kind": "adaptive", "ratio": ratio, "delta": delta}
        for ratio in RATIOS
        for delta in DELTAS
    },
    "CR 0.01, error feedback": {"kind": "top-k", "ratio": 0.01, "values": "f16"},
    "CR 0.04, signs, error feedback": {"kind": "top-k", "ratio": 0.04, "values": "sign"},
    "CR 0.01, no feedback": {"kind": "top-k", "ratio": 0.01, "values": "f16", "error_feedback": False},
    _BEST: {"kind": "graded"},
    "fp16": {"kind": "fp16"},
    "int8": {"kind": "int8"},
}
_FEW = ("dense", _adaptive_name(0.1, 0.3), _BEST)


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """Every codec where training converges, the best with more seeds; some on pictures, where it has not yet."""
    repeats = 1 if context.quick else 3
    runs = [
        _codec_piece(name, name, codec_volume.DIGITS, repeat, context)
        for repeat in range(repeats)
        for name in (CODECS if repeat == 0 else ("dense", _BEST))
    ]
    pictures = (
        [] if context.quick else [_codec_piece(_PICTURES + name, name, codec_volume.CIFAR, 0, context) for name in _FEW]
    )
    return [_speed_piece(context), *runs, *pictures]


def _codec_piece(
    title: str, name: str, workload: codec_volume.CodecWorkload, repeat: int, context: BenchmarkContext
) -> BenchmarkPiece:
    codec, seed = CODECS[name], context.seed + repeat
    parameters = {"workload": dict(workload._asdict()), "codec": dict(codec), "repeat": repeat}
    weight = 8.0 if workload is codec_volume.DIGITS else 60.0
    work = partial(codec_volume.measure_codec, workload, codec, seed, context.data)
    return BenchmarkPiece(f"{title}/{repeat}", parameters, work, weight, parallel=True)


def _speed_piece(context: BenchmarkContext) -> BenchmarkPiece:
    size, repeats = (2_000_000, 3) if context.quick else (10_000_000, 9)
    parameters = {"size": size, "ratio": 0.01, "repeats": repeats}
    return BenchmarkPiece(
        "speed", parameters, lambda: compression_speed.measure_compression(size, 0.01, repeats, context.seed), repeats
    )


def compute_figures(results: Results) -> list[Figure]:
    on_digits = [row for name in CODECS for row in _codec_figures(results, "", name)]
    on_pictures = [row for name in _FEW for row in _codec_figures(results, _PICTURES, name)]
    return [_speed_figure(results["speed"]), *on_digits, *on_pictures]


def _speed_figure(found: Mapping[str, Any]) -> Figure:
    ratios = [ours / reference for ours, reference in zip(found["ours_s"], found["reference_s"], strict=True)]
    return figure_of_repeats("compressing at CR 0.01 against a copy and torch.topk", "x", ratios, goal=Goal("≤", 3.0))


def _codec_figures(results: Results, data: str, name: str) -> Iterator[Figure]:
    best, title = name == _BEST, data + name
    accuracies = _piece_values(results, title, "accuracy")
    if not accuracies:
        return
    yield figure_of_repeats(f"{title}: accuracy", "%", [100 * value for value in accuracies])
    if name == "dense":
        return
    less = [whole / sent for whole, sent in zip(*(_piece_values(results, title, key) for key in _BYTES), strict=True)]
    yield figure_of_repeats("  volume, times less than dense", "x", less, goal=Goal("≥", 100.0) if best else None)
    dense = _piece_values(results, f"{data}dense", "accuracy")[: len(accuracies)]
    lost = 100 * (statistics.mean(dense) - statistics.mean(accuracies))
    note = f"mean of {len(accuracies)} seeds" if len(accuracies) > 1 else ""
    goal = Goal("≤", 0.2) if best else None
    yield Figure(name="  accuracy lost against dense", unit="pt", measured=lost, goal=goal, note=note)
    if CODECS[name]["kind"] == "adaptive":
        yield figure_of_repeats(
            "  CNC, share of pushes compressed", "%", [100 * share for share in _piece_values(results, title, "cnc")]
        )


def _piece_values(results: Results, name: str, key: str) -> list[float]:
    return [float(result[key]) for piece, result in results.items() if piece.rpartition("/")[0] == name]


def build_charts(results: Results) -> Sequence[Chart]:
    grid = [[_adaptive_name(ratio, delta) for delta in DELTAS] for ratio in RATIOS]
    series = [
        ChartSeries(f"CR {ratio:g}", [100 * statistics.mean(_piece_values(results, name, "cnc")) for name in names])
        for ratio, names in zip(RATIOS, grid, strict=True)
    ]
    groups = [f"δ {delta:g}" for delta in DELTAS]
    return [Chart(title="Pushes that are compressed (CNC)", y_label="%", groups=groups, series=series)]
