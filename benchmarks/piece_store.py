"""Keeps the finished pieces of a benchmark, so that one that was stopped can resume, on another machine too.

    piece is done ──append──▶ results/unfinished/NAME-MODE.jsonl ──all are done──▶ results/NAME.json

A piece is found again, in either file, if its parameters, the mode, the seed and the measured code are the same. The
file of an unfinished benchmark may be committed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.benchmark import BenchmarkContext, BenchmarkPiece

__all__ = ["PieceStore", "StoredPiece", "parameters_digest", "unfinished_path"]

_FAILED = {"error", "skipped"}


class StoredPiece(NamedTuple):
    """The result of a piece, and how it was measured: date, commit, clean tree, seconds, load."""

    result: Mapping[str, Any]
    measurement: Mapping[str, Any]


class PieceStore:
    """The finished pieces of one benchmark; those of earlier runs only if they are reused."""

    def __init__(self, folder: Path, name: str, context: BenchmarkContext, code: str, reuse: bool) -> None:
        self._unfinished = unfinished_path(folder, name, context.mode)
        self._context = context
        self.code = code
        self._pieces: dict[str, StoredPiece] = {}
        if reuse:
            for line in [*_read_document(folder / f"{name}.json"), *_read_lines(self._unfinished)]:
                self._load_piece(line)
        else:
            self._unfinished.unlink(missing_ok=True)

    def _load_piece(self, line: Any) -> None:
        """What cannot be read, has failed or was skipped is measured again."""
        try:
            name, piece = str(line["piece"]), StoredPiece(dict(line["result"]), dict(line["measurement"]))
        except (KeyError, TypeError, ValueError):
            return
        if not _FAILED & piece.result.keys():
            self._pieces[name] = piece

    def find_result(self, piece: BenchmarkPiece, of_any_code: bool = False) -> StoredPiece | None:
        """The stored result of an equal piece, or None."""
        found = self._pieces.get(piece.name)
        identity = self.identity(piece)
        if of_any_code:
            del identity["code"]
        if found is None or any(found.measurement.get(key) != value for key, value in identity.items()):
            return None
        return found

    def identity(self, piece: BenchmarkPiece) -> dict[str, Any]:
        """Equal for pieces of equal work, measured with the same code."""
        return {
            "parameters": parameters_digest(piece),
            "mode": self._context.mode,
            "seed": self._context.seed,
            "code": piece.code or self.code,
        }

    def adopt_pieces(self, pieces: Sequence[BenchmarkPiece]) -> None:
        """Keep these stored pieces alone, as measured with the code of now."""
        self._unfinished.unlink(missing_ok=True)
        for piece in pieces:
            result, measurement = self._pieces[piece.name]
            self.add_piece(piece.name, StoredPiece(result, {**measurement, **self.identity(piece)}))

    def add_piece(self, name: str, stored: StoredPiece) -> None:
        """Keep a finished piece."""
        self._unfinished.parent.mkdir(parents=True, exist_ok=True)
        line = {"piece": name, "result": stored.result, "measurement": stored.measurement}
        with self._unfinished.open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def unfinished_path(folder: Path, name: str, mode: str) -> Path:
    """The file with the finished pieces of a benchmark that is not finished."""
    return folder / "unfinished" / f"{name}-{mode}.jsonl"


def parameters_digest(piece: BenchmarkPiece) -> str:
    """Equal for pieces of equal work."""
    return hashlib.blake2b(json.dumps(dict(piece.parameters), sort_keys=True).encode(), digest_size=8).hexdigest()


def _read_document(path: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(path.read_text())
        measurements = document["measurements"]
        return [
            {"piece": name, "result": result, "measurement": measurements[name]}
            for name, result in document["pieces"].items()
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The last line may be torn, if the benchmark was killed while it wrote."""
    if not path.is_file():
        return []
    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines
