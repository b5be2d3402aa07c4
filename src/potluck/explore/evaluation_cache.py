"""Answers on disk, one JSON line each, so that an exploration that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from potluck.explore.candidate_evaluator import EvaluationRequest

__all__ = ["EvaluationCache", "settings_digest"]


def settings_digest(*what: object) -> str:
    """A short name for settings: equal settings, equal name."""
    return hashlib.blake2b(json.dumps(what, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


class EvaluationCache:
    """Known answers of one experiment, named by its digest; several experiments may share the file."""

    def __init__(self, path: Path | None, experiment: str) -> None:
        self._path = path
        self._experiment = experiment
        self._scores: dict[EvaluationRequest, float] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._parse_line(line)

    def find_score(self, question: EvaluationRequest) -> float | None:
        return self._scores.get(question)

    def store_score(self, question: EvaluationRequest, answer: float) -> None:
        self._scores[question] = answer
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([self._experiment, *question, answer]) + "\n")

    def __len__(self) -> int:
        return len(self._scores)

    def _parse_line(self, line: str) -> None:
        try:
            experiment, judge, counts, repeat, answer = json.loads(line)
        except ValueError:  # the last line of a process that was killed
            return
        if experiment == self._experiment:
            self._scores[EvaluationRequest(judge, tuple(counts), repeat)] = float(answer)
