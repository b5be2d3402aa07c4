"""Skewed classes: pieces and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.benchmark import BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_figures import Figure
from benchmarks.streaming import scadles_published, skew_training

__all__ = ["compute_figures", "declare_pieces"]

_SAMPLE_BYTES = 3 * 32 * 32 + 8


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    workload = skew_training.QUICK if context.quick else skew_training.FULL
    return [_skew_piece(name, case, workload, context) for name, case in skew_training.CASES.items()]


def _skew_piece(
    name: str, case: skew_training.SkewCase, workload: skew_training.SkewWorkload, context: BenchmarkContext
) -> BenchmarkPiece:
    parameters = {"workload": dict(workload._asdict()), "case": dict(case._asdict()), "seed": context.seed}
    work = partial(skew_training.measure_skew, case, workload, context.seed, context.data)
    return BenchmarkPiece(f"skew/{name}", parameters, work, expected_s=3.0 if context.quick else 90.0, parallel=True)


def compute_figures(results: Results) -> Iterator[Figure]:
    for name, case in skew_training.CASES.items():
        found: Mapping[str, Any] = results[f"skew/{name}"]
        said = (
            scadles_published.STALLED.get("ddl" if case.recipe == "ddl" else "scadles")
            if case.norm == "batch"
            else None
        )
        yield Figure(
            name=f"one class per device: {name}" if not case.mixed else name, unit="%",
            measured=100 * found["accuracy"],
            published=scadles_published.published_value(said) if said is not None and not case.mixed else None,
            note=f"{found['shared'] * _SAMPLE_BYTES / 1e6:.1f} MB of raw samples shared" if found["shared"] else "",
        )  # fmt: skip
