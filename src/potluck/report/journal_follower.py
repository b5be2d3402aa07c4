"""Follows journals that are still being written: the full history of one run, and an overview for the list of runs."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from potluck.journal import Instant, Scalar, Span
from potluck.report.run_curves import thinned_indices
from potluck.report.run_folder import RunFolder, Stamp
from potluck.report.run_history import RunHistory
from potluck.report.run_view import build_run_view, job_title, span_positions

__all__ = ["JournalFollower", "RunOverview"]

_CHUNK_BYTES = 8 << 20
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
        self._decode = msgspec.json.Decoder(Span | Instant | Scalar).decode

    def read_new(self) -> bool:
        """Read appended records; returns whether there were any."""
        with self._lock:
            stamp = self.run.file_stamps()[0]
            if stamp == self._last_stamp:
                return False
            self._last_stamp = stamp
            if stamp[1] < self._offset:
                self.generation, self.history, self._offset = self.generation + 1, RunHistory(), 0
            before = self._offset
            while self._read_chunk():
                pass
            return self._offset > before

    def _read_chunk(self) -> bool:
        with self.run.journal.open("rb") as file:
            file.seek(self._offset)
            chunk = file.read(_CHUNK_BYTES)
        whole = chunk.rfind(b"\n") + 1
        for line in chunk[:whole].splitlines():
            self._add_line(line)
        self._offset += whole
        return whole > 0

    def _add_line(self, line: bytes) -> None:
        try:
            self.history.add_record(self._decode(line))
        except msgspec.DecodeError:
            return  # a report names the bad line; a live page skips it

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
        self._accuracy: list[float] = []
        self._rounds = 0
        self._time_s = 0.0

    def to_entry(self) -> dict[str, Any]:
        self._read_new()
        summary, job = self.run.load_summary(), self.run.load_job()
        kept = thinned_indices(self._accuracy, _SPARKLINE_POINTS)
        return {
            "id": self.run.name,
            "title": summary.get("name") or job_title(job) or self.run.name,
            "recipe": summary.get("recipe") or job.get("recipe", ""),
            "status": self.run.run_status(),
            "accuracy": self._accuracy[-1] if self._accuracy else None,
            "curve": [round(self._accuracy[index], 4) for index in kept],
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
            self._offset, self._accuracy = 0, []
        with self.run.journal.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                if line.startswith(b'{"kind":"scalar"') and b'"coordinator"' in line:
                    self._add_line(line)

    def _add_line(self, line: bytes) -> None:
        try:
            scalar = msgspec.json.decode(line, type=Scalar)
        except msgspec.DecodeError:
            return
        self._rounds = max(self._rounds, int(scalar.fields.get("round", 0)))
        self._time_s = scalar.at
        if scalar.name == "test_accuracy":
            self._accuracy.append(scalar.value)
