"""Skewed classes: pieces and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from potluck.bench.experiment import Context, Piece, Results
from potluck.bench.figures import Figure
from potluck.bench.streaming import published, skew

__all__ = ["figures", "pieces"]

_SAMPLE_BYTES = 3 * 32 * 32 + 8


def pieces(context: Context) -> list[Piece]:
    workload = skew.QUICK if context.quick else skew.FULL
    return [_piece(name, case, workload, context) for name, case in skew.CASES.items()]


def _piece(name: str, case: skew.Case, workload: skew.Workload, context: Context) -> Piece:
    parameters = {"workload": dict(workload._asdict()), "case": dict(case._asdict()), "seed": context.seed}
    work = partial(skew.measure, case, workload, context.seed, context.data)
    return Piece(f"skew/{name}", parameters, work, weight=3.0 if context.quick else 90.0, beside=True)


def figures(results: Results) -> Iterator[Figure]:
    for name, case in skew.CASES.items():
        found: Mapping[str, Any] = results[f"skew/{name}"]
        said = published.STALLED.get("ddl" if case.recipe == "ddl" else "scadles") if case.norm == "batch" else None
        yield Figure(
            name=f"one class per device: {name}" if not case.mixed else name, unit="%",
            measured=100 * found["accuracy"],
            published=published.paper(said) if said is not None and not case.mixed else None,
            note=f"{found['shared'] * _SAMPLE_BYTES / 1e6:.1f} MB of raw samples shared" if found["shared"] else "",
        )  # fmt: skip
