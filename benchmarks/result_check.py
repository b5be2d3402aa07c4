"""Checks that a recorded result still holds after a change of the code: measures some of its pieces again.

Pieces that contain no time of this machine must give the recorded values to the last digit; the others are measured
again and replaced. The result then counts as current for the code of the check, and says how much was checked. The
exact pieces of an unfinished benchmark are checked likewise, and it can then be resumed with the code of the check.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece
from benchmarks.benchmark_report import BenchmarkReport, build_report
from benchmarks.benchmark_runner import bind_needs, measure_pieces
from benchmarks.machine_info import describe_revision
from benchmarks.measured_code import code_digest
from benchmarks.piece_store import PieceStore, StoredPiece, parameters_digest
from potluck.errors import UserError

__all__ = ["check_result", "check_unfinished", "choose_sample"]


def check_result(
    benchmark: Benchmark,
    context: BenchmarkContext,
    document: Mapping[str, Any],
    minutes: float,
    show: Callable[[str], None],
) -> BenchmarkReport:
    """The report as of now; raises UserError if a piece gives other values than those recorded."""
    benchmark.check_data(context)
    code, pieces = code_digest(benchmark.code_paths), benchmark.pieces(context)
    _check_comparable(benchmark, context, document, pieces)
    results, measurements = document["pieces"], document["measurements"]
    stored = {piece.name: StoredPiece(results[piece.name], measurements[piece.name]) for piece in pieces}
    sample = choose_sample([piece for piece in pieces if piece.parallel], 60 * minutes, code)
    chosen = {piece.name for piece in sample}
    again = [bind_needs(piece, results) for piece in pieces if piece.name in chosen or not piece.parallel]
    for piece, result, measurement in measure_pieces(again, show):
        if not piece.parallel:
            digest = {"parameters": parameters_digest(piece)}
            stored[piece.name] = StoredPiece(result, {**measurement, **describe_revision(), **digest})
        elif _differs(result, results[piece.name]):
            raise _other_values(benchmark, context, piece.name, document["commit"])
    report = build_report(benchmark, context, code, stored)
    report.document.update({key: document[key] for key in ("commit", "date")})
    report.document["checked"] = {
        **describe_revision(),
        "pieces": len(sample),
        "of": sum(piece.parallel for piece in pieces),
        "measured_again": len(pieces) - sum(piece.parallel for piece in pieces),
    }
    return report


def check_unfinished(
    benchmark: Benchmark, context: BenchmarkContext, folder: Path, minutes: float, show: Callable[[str], None]
) -> int:
    """Let the exact pieces of an unfinished benchmark count for the code of now; returns how many there are.

    Raises UserError if one of the sample gives other values than those recorded.
    """
    benchmark.check_data(context)
    store = PieceStore(folder, benchmark.name, context, code_digest(benchmark.code_paths), reuse=True)
    pieces = {piece.name: piece for piece in benchmark.pieces(context)}
    stored = {name: found for name, piece in pieces.items() if (found := store.find_result(piece, of_any_code=True))}
    results = {name: found.result for name, found in stored.items()}
    exact = [pieces[name] for name in stored if pieces[name].parallel]
    again = [bind_needs(piece, results) for piece in choose_sample(exact, 60 * minutes, store.code)]
    for piece, result, _ in measure_pieces(again, show):
        if _differs(result, results[piece.name]):
            raise _other_values(benchmark, context, piece.name, stored[piece.name].measurement["commit"])
    store.adopt_pieces(exact)
    return len(exact)


def _differs(result: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    return bool(json.loads(json.dumps(result)) != recorded)


def _other_values(benchmark: Benchmark, context: BenchmarkContext, name: str, commit: str) -> UserError:
    return UserError(
        f"{benchmark.name}: {name} gives other values than at commit {commit[:9]};"
        f" measure again: {benchmark.command_line(context)}"
    )


def _check_comparable(
    benchmark: Benchmark, context: BenchmarkContext, document: Mapping[str, Any], pieces: Sequence[BenchmarkPiece]
) -> None:
    recorded = {name: each.get("parameters") for name, each in document["measurements"].items()}
    if not document.get("clean"):
        raise UserError(
            f"{benchmark.name} was not measured at a commit; run it again: {benchmark.command_line(context)}"
        )
    if recorded != {piece.name: parameters_digest(piece) for piece in pieces}:
        raise UserError(
            f"{benchmark.name} has other pieces or parameters than those recorded; measure again:"
            f" {benchmark.command_line(context)}"
        )


def choose_sample(pieces: Sequence[BenchmarkPiece], seconds: float, code: str) -> list[BenchmarkPiece]:
    """The quickest piece of every kind, then others in an order that depends on the code, while there is time."""
    kinds: dict[str, BenchmarkPiece] = {}
    for piece in pieces:
        kind = piece.name.partition("/")[0]
        if kind not in kinds or piece.expected_s < kinds[kind].expected_s:
            kinds[kind] = piece
    sample = list(kinds.values())
    seconds -= sum(piece.expected_s for piece in sample)
    taken = {piece.name for piece in sample}
    others = [piece for piece in pieces if piece.name not in taken]
    random.Random(code).shuffle(others)
    for piece in others:
        if piece.expected_s <= seconds:
            sample.append(piece)
            seconds -= piece.expected_s
    return sample
