"""A journal that is still being written: what is new since the last look, and what the list of runs says of each."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from potluck.journal import Instant, Scalar, Span
from potluck.report.folder import RunFolder, Stamp
from potluck.report.story import Story
from potluck.report.thinning import thin
from potluck.report.view import positions, title_of, view

__all__ = ["Follower", "Glance"]

_PIECE = 8 << 20  # bytes that are read at once
_SPARK = 60


class Follower:
    """Keeps the story of one run up to date by reading what was appended; several may ask."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.life = 0  # another one begins where the journal was cut (a resumed run)
        self.story = Story()
        self._read = 0
        self._looked: Stamp = (0, -1)  # as the journal was
        self._lock = threading.Lock()
        self._decode = msgspec.json.Decoder(Span | Instant | Scalar).decode

    def look(self) -> bool:
        """Read what is new; whether there was anything."""
        with self._lock:
            stamp = self.run.stamps()[0]
            if stamp == self._looked:
                return False
            self._looked = stamp
            if stamp[1] < self._read:
                self.life, self.story, self._read = self.life + 1, Story(), 0
            before = self._read
            while self._take_piece():
                pass
            return self._read > before

    def _take_piece(self) -> bool:
        with self.run.journal.open("rb") as file:
            file.seek(self._read)
            piece = file.read(_PIECE)
        whole = piece.rfind(b"\n") + 1
        for line in piece[:whole].splitlines():
            self._add(line)
        self._read += whole
        return whole > 0

    def _add(self, line: bytes) -> None:
        try:
            self.story.add(self._decode(line))
        except msgspec.DecodeError:
            return  # the report names the line; a page that follows goes on

    def view(self, since: dict[str, int] | None = None) -> tuple[dict[str, Any], dict[str, int]]:
        """What there is to show, and the positions after which the next look begins."""
        with self._lock:
            return view(self.story, self.run, since), positions(self.story)


class Glance:
    """What the list shows of a run, read from its accuracy records only and kept until the journal grows."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._read = 0
        self._looked: Stamp = (0, -1)
        self._accuracy: list[float] = []
        self._rounds = 0
        self._time_s = 0.0

    def entry(self) -> dict[str, Any]:
        self._catch_up()
        summary, job = self.run.summary(), self.run.job()
        kept = thin(self._accuracy, _SPARK)
        return {
            "id": self.run.name,
            "title": summary.get("name") or title_of(job) or self.run.name,
            "recipe": summary.get("recipe") or job.get("recipe", ""),
            "status": self.run.status(),
            "accuracy": self._accuracy[-1] if self._accuracy else None,
            "curve": [round(self._accuracy[place], 4) for place in kept],
            "rounds": summary.get("rounds", self._rounds),
            "time_s": summary.get("time_s", self._time_s),
            "changed": self.run.journal.stat().st_mtime,
        }

    def _catch_up(self) -> None:
        stamp = self.run.stamps()[0]
        if stamp == self._looked:
            return
        self._looked = stamp
        if stamp[1] < self._read:
            self._read, self._accuracy = 0, []
        with self.run.journal.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                if line.startswith(b'{"kind":"scalar"') and b'"coordinator"' in line:
                    self._add(line)

    def _add(self, line: bytes) -> None:
        try:
            scalar = msgspec.json.decode(line, type=Scalar)
        except msgspec.DecodeError:
            return
        self._rounds = max(self._rounds, int(scalar.fields.get("round", 0)))
        self._time_s = scalar.at
        if scalar.name == "test_accuracy":
            self._accuracy.append(scalar.value)
