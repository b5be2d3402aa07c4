"""Keeps scores on disk, one JSON line each, so that an interrupted exploration can continue."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from potluck.explore.candidate_evaluator import EvaluationRequest

__all__ = ["EvaluationCache", "settings_digest"]


def settings_digest(*settings: object) -> str:
    """A short digest of settings; equal settings have equal digests."""
    return hashlib.blake2b(json.dumps(settings, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


class EvaluationCache:
    """The known scores of one experiment, identified by its digest; one file may hold several experiments."""

    def __init__(self, path: Path | None, experiment: str) -> None:
        self._path = path
        self._experiment = experiment
        self._scores: dict[EvaluationRequest, float] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._parse_line(line)

    def find_score(self, request: EvaluationRequest) -> float | None:
        return self._scores.get(request)

    def store_score(self, request: EvaluationRequest, score: float) -> None:
        self._scores[request] = score
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([self._experiment, *request, score]) + "\n")

    def __len__(self) -> int:
        return len(self._scores)

    def _parse_line(self, line: str) -> None:
        try:
            experiment, judge, counts, repeat, score = json.loads(line)
        except ValueError:  # incomplete line of a killed process
            return
        if experiment == self._experiment:
            self._scores[EvaluationRequest(judge, tuple(counts), repeat)] = float(score)
