"""A journal that is still being written: what is new since the last look, and what the list of runs says of each."""

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

_PIECE = 8 << 20  # bytes that are read at once
_SPARK = 60


class JournalFollower:
    """Keeps the story of one run up to date by reading what was appended; several may ask."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.generation = 0  # another one begins where the journal was cut (a resumed run)
        self.history = RunHistory()
        self._offset = 0
        self._last_stamp: Stamp = (0, -1)  # as the journal was
        self._lock = threading.Lock()
        self._decode = msgspec.json.Decoder(Span | Instant | Scalar).decode

    def read_new(self) -> bool:
        """Read what is new; whether there was anything."""
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
            piece = file.read(_PIECE)
        whole = piece.rfind(b"\n") + 1
        for line in piece[:whole].splitlines():
            self._add_line(line)
        self._offset += whole
        return whole > 0

    def _add_line(self, line: bytes) -> None:
        try:
            self.history.add_record(self._decode(line))
        except msgspec.DecodeError:
            return  # the report names the line; a page that follows goes on

    def current_view(self, since: dict[str, int] | None = None) -> tuple[dict[str, Any], dict[str, int]]:
        """What there is to show, and the positions after which the next look begins."""
        with self._lock:
            return build_run_view(self.history, self.run, since), span_positions(self.history)


class RunOverview:
    """What the list shows of a run, read from its accuracy records only and kept until the journal grows."""

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
        kept = thinned_indices(self._accuracy, _SPARK)
        return {
            "id": self.run.name,
            "title": summary.get("name") or job_title(job) or self.run.name,
            "recipe": summary.get("recipe") or job.get("recipe", ""),
            "status": self.run.run_status(),
            "accuracy": self._accuracy[-1] if self._accuracy else None,
            "curve": [round(self._accuracy[place], 4) for place in kept],
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
