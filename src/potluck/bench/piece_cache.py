"""Pieces of a benchmark that are done, kept so that a stopped benchmark need not begin again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import potluck
from potluck.bench.benchmark import BenchmarkContext, BenchmarkPiece

__all__ = ["PieceCache", "write_atomically"]


class PieceCache:
    """A folder of finished pieces; what lies there is only used if `reuse` says so."""

    def __init__(self, folder: Path, context: BenchmarkContext, reuse: bool) -> None:
        self._folder = folder
        self._context = context
        self._reuse = reuse

    def find_result(self, piece: BenchmarkPiece) -> Mapping[str, Any] | None:
        """The result of an equal piece, if it is to be used again."""
        if not self._reuse:
            return None
        try:
            kept: dict[str, Any] = json.loads(self.result_path(piece).read_text())["result"]
        except (OSError, ValueError, KeyError, TypeError):
            return None  # absent or damaged: measured anew
        return kept

    def store_result(self, piece: BenchmarkPiece, result: Mapping[str, Any]) -> None:
        content = {"piece": piece.name, "key": self._cache_key(piece), "result": result}
        write_atomically(self.result_path(piece), json.dumps(content, indent=1) + "\n")

    def result_path(self, piece: BenchmarkPiece) -> Path:
        digest = hashlib.blake2b(json.dumps(self._cache_key(piece), sort_keys=True).encode(), digest_size=10)
        return self._folder / f"{digest.hexdigest()}.json"

    def _cache_key(self, piece: BenchmarkPiece) -> dict[str, Any]:
        """All that the result depends on."""
        return {
            "piece": piece.name,
            "parameters": dict(piece.parameters),
            "seed": self._context.seed,
            "version": potluck.__version__,
        }


def write_atomically(path: Path, content: str) -> None:
    """Write beside and rename, so that a reader never meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".partial")
    aside.write_text(content)
    aside.replace(path)
