"""Compression: what the paper's rule sends for each ratio and threshold, and what a graded ratio with feedback does."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from potluck.bench.chart import Chart, Series
from potluck.bench.experiment import Context, Piece, Results
from potluck.bench.figures import Figure, Goal, of_repeats
from potluck.bench.streaming import compress, volume

__all__ = ["CODECS", "charts", "figures", "pieces"]

RATIOS = (0.1, 0.01)
DELTAS = (0.1, 0.2, 0.3, 0.4)
_BEST = "graded, error feedback"
_PICTURES = "CIFAR-10, "
_BYTES = ("dense_bytes", "pushed_bytes")


def _adaptive(ratio: float, delta: float) -> str:
    return f"CR {ratio:g}, δ {delta:g}"


CODECS: Mapping[str, Mapping[str, Any]] = {
    "dense": {"kind": "dense"},
    **{
        _adaptive(ratio, delta): {"kind": "adaptive", "ratio": ratio, "delta": delta}
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
_FEW = ("dense", _adaptive(0.1, 0.3), _BEST)


def pieces(context: Context) -> list[Piece]:
    """Every codec where training converges, the best with more seeds; some on pictures, where it has not yet."""
    repeats = 1 if context.quick else 3
    runs = [
        _run(name, name, volume.DIGITS, repeat, context)
        for repeat in range(repeats)
        for name in (CODECS if repeat == 0 else ("dense", _BEST))
    ]
    pictures = [] if context.quick else [_run(_PICTURES + name, name, volume.CIFAR, 0, context) for name in _FEW]
    return [_speed(context), *runs, *pictures]


def _run(title: str, name: str, workload: volume.Workload, repeat: int, context: Context) -> Piece:
    codec, seed = CODECS[name], context.seed + repeat
    parameters = {"workload": dict(workload._asdict()), "codec": dict(codec), "repeat": repeat}
    weight = 8.0 if workload is volume.DIGITS else 60.0
    work = partial(volume.measure, workload, codec, seed, context.data)
    return Piece(f"{title}/{repeat}", parameters, work, weight, beside=True)


def _speed(context: Context) -> Piece:
    size, repeats = (2_000_000, 3) if context.quick else (10_000_000, 9)
    parameters = {"size": size, "ratio": 0.01, "repeats": repeats}
    return Piece("speed", parameters, lambda: compress.measure(size, 0.01, repeats, context.seed), repeats)


def figures(results: Results) -> list[Figure]:
    on_digits = [row for name in CODECS for row in _codec_figures(results, "", name)]
    on_pictures = [row for name in _FEW for row in _codec_figures(results, _PICTURES, name)]
    return [_speed_figure(results["speed"]), *on_digits, *on_pictures]


def _speed_figure(found: Mapping[str, Any]) -> Figure:
    ratios = [ours / reference for ours, reference in zip(found["ours_s"], found["reference_s"], strict=True)]
    return of_repeats("compressing at CR 0.01 against a copy and torch.topk", "x", ratios, goal=Goal("≤", 3.0))


def _codec_figures(results: Results, data: str, name: str) -> Iterator[Figure]:
    best, title = name == _BEST, data + name
    accuracies = _of(results, title, "accuracy")
    if not accuracies:
        return
    yield of_repeats(f"{title}: accuracy", "%", [100 * value for value in accuracies])
    if name == "dense":
        return
    less = [whole / sent for whole, sent in zip(*(_of(results, title, key) for key in _BYTES), strict=True)]
    yield of_repeats("  volume, times less than dense", "x", less, goal=Goal("≥", 100.0) if best else None)
    dense = _of(results, f"{data}dense", "accuracy")[: len(accuracies)]
    lost = 100 * (statistics.mean(dense) - statistics.mean(accuracies))
    note = f"mean of {len(accuracies)} seeds" if len(accuracies) > 1 else ""
    goal = Goal("≤", 0.2) if best else None
    yield Figure(name="  accuracy lost against dense", unit="pt", measured=lost, goal=goal, note=note)
    if CODECS[name]["kind"] == "adaptive":
        yield of_repeats(
            "  CNC, share of pushes compressed", "%", [100 * share for share in _of(results, title, "cnc")]
        )


def _of(results: Results, name: str, key: str) -> list[float]:
    return [float(result[key]) for piece, result in results.items() if piece.rpartition("/")[0] == name]


def charts(results: Results) -> Sequence[Chart]:
    grid = [[_adaptive(ratio, delta) for delta in DELTAS] for ratio in RATIOS]
    series = [
        Series(f"CR {ratio:g}", [100 * statistics.mean(_of(results, name, "cnc")) for name in names])
        for ratio, names in zip(RATIOS, grid, strict=True)
    ]
    groups = [f"δ {delta:g}" for delta in DELTAS]
    return [Chart(title="Pushes that are compressed (CNC)", y_label="%", groups=groups, series=series)]
