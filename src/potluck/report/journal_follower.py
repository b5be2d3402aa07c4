"""Follows journals that are still being written: the full history of one run, and an overview for the list of runs."""

from __future__ import annotations

import threading
from typing import Any

from potluck.journal import RecordDecoder, Scalar
from potluck.journal.journal_reader import complete_lines
from potluck.report.run_curves import thinned_indices
from potluck.report.run_folder import RunFolder, Stamp
from potluck.report.run_history import RunHistory
from potluck.report.run_view import build_run_view, job_title, span_positions

__all__ = ["JournalFollower", "RunOverview"]

_SPARKLINE_POINTS = 60


class JournalFollower:
    """Keeps the history of one run up to date by reading appended records; safe to call from several threads."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.generation = 0  # incremented when the journal was truncated (a resumed run)
        self.history = RunHistory()
        self._offset = 0
        self._last_stamp: Stamp = (0, -1)  # of the journal
        self._lock = threading.Lock()
        self._decoder = RecordDecoder()

    def read_new(self) -> bool:
        """Read appended records; returns whether there were any."""
        with self._lock:
            stamp = self.run.file_stamps()[0]
            if stamp == self._last_stamp or stamp[1] < 0:  # unchanged, or gone for now
                return False
            self._last_stamp = stamp
            if stamp[1] < self._offset:
                self.generation, self.history, self._offset = self.generation + 1, RunHistory(), 0
                self._decoder = RecordDecoder()
            before = self._offset
            self._read_lines()
            return self._offset > before

    def _read_lines(self) -> None:
        with self.run.journal.open("rb") as file:
            file.seek(self._offset)
            for line, length in complete_lines(file):
                self._offset += length
                record = self._decoder.decode_line(line)
                if record is not None:
                    self.history.add_record(record)
        self.history.unreadable = self._decoder.unreadable

    def current_view(self, since: dict[str, int] | None = None) -> tuple[dict[str, Any], dict[str, int]]:
        """The view of the run, and the span positions to pass as `since` next time."""
        with self._lock:
            return build_run_view(self.history, self.run, since), span_positions(self.history)


class RunOverview:
    """What the list shows of a run, read from its coordinator's scalars only and cached until the journal changes."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._offset = 0
        self._last_stamp: Stamp = (0, -1)
        self._metrics: dict[str, list[float]] = {}  # of evaluations
        self._rounds = 0
        self._time_s = 0.0
        self._decoder = RecordDecoder()

    def to_entry(self) -> dict[str, Any]:
        self._read_new()
        summary, job = self.run.load_summary(), self.run.load_job()
        metric, values = self._shown_metric()
        kept = thinned_indices(values, _SPARKLINE_POINTS)
        return {
            "id": self.run.name,
            "title": summary.get("name") or job_title(job) or self.run.name,
            "recipe": summary.get("recipe") or job.get("recipe", ""),
            "status": self.run.run_status(),
            "accuracy": values[-1] if metric == "accuracy" else None,
            "metric": [metric, values[-1]] if values else None,
            "curve": [float(f"{values[index]:.4g}") for index in kept],
            "rounds": summary.get("rounds", self._rounds),
            "time_s": summary.get("time_s", self._time_s),
            "changed": self.run.journal.stat().st_mtime,
        }

    def _read_new(self) -> None:
        stamp = self.run.file_stamps()[0]
        if stamp == self._last_stamp:
            return
        self._last_stamp = stamp
        if stamp[1] < self._offset:
            self._offset, self._metrics = 0, {}
        with self.run.journal.open("rb") as file:
            file.seek(self._offset)
            for line, length in complete_lines(file):
                self._offset += length
                if line is not None and line.startswith(b'{"kind":"scalar"') and b'"coordinator"' in line:
                    self._add_line(line)

    def _add_line(self, line: bytes) -> None:
        scalar = self._decoder.decode_line(line)
        if not isinstance(scalar, Scalar):
            return
        self._rounds = max(self._rounds, int(scalar.fields.get("round", 0)))
        self._time_s = scalar.at
        if scalar.name.startswith("test_"):
            self._metrics.setdefault(scalar.name.removeprefix("test_"), []).append(scalar.value)

    def _shown_metric(self) -> tuple[str, list[float]]:
        """Accuracy if there is one, else the first metric after the loss, else the loss."""
        names = sorted(self._metrics, key=lambda name: (name != "accuracy", name == "loss"))
        return (names[0], self._metrics[names[0]]) if names else ("", [])
