"""What a run has committed, read from its journal while it runs: how fast, how evenly, and whether anything was lost.

A round is a span of the coordinator's, a batch of a pipeline an instant `committed` that a later `rolled back` may
take away again.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

__all__ = ["CommitWatcher", "Commits", "read_commits"]

_POLL_S = 0.05
_MARKS = (b'"name":"round"', b'"name":"committed"', b'"name":"rolled back"')


class Commits(NamedTuple):
    """The committed history at one moment."""

    lines: tuple[bytes, ...]  # one journal line for each round or batch that counts
    redone: int  # batches that were committed and rolled back
    repeated: int  # rounds, batches or updates that stand there twice
    skipped: int  # numbers that are missing in between

    def lost_since(self, earlier: Sequence[bytes]) -> int:
        """How many of these committed lines are no longer there."""
        return len(set(earlier) - set(self.lines))


def read_commits(run: Path) -> Commits:
    """The history that a run's journal tells, without a line that is still being written."""
    journal = run / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
    return _commits_of([line for line in lines if any(mark in line for mark in _MARKS)])


def _commits_of(lines: Sequence[bytes]) -> Commits:
    history: list[tuple[int, bytes]] = []
    redone = repeated = skipped = 0
    updates: set[tuple[str, int]] = set()
    for number, fields, line in _numbered(lines):
        if number is None:
            redone += max(0, len(history) - int(fields["to"]))
            del history[int(fields["to"]) :]
            continue
        expected = history[-1][0] + 1 if history else 0
        repeated += number < expected
        skipped += max(0, number - expected)
        for device, turn in fields.get("devices", ()):
            repeated += (device, turn) in updates
            updates.add((device, turn))
        history.append((number, line))
    return Commits(tuple(line for _, line in history), redone, repeated, skipped)


def _numbered(lines: Sequence[bytes]) -> Iterator[tuple[int | None, dict[str, Any], bytes]]:
    """The number of each round or batch with its fields; None for a rollback."""
    for line in lines:
        record = msgspec.json.decode(line)
        fields = record["fields"]
        if record["name"] == "rolled back":
            yield None, fields, line
        elif record["name"] == "round":
            yield int(fields["round"]), fields, line
        else:
            yield int(fields["batch"]), fields, line


class CommitWatcher:
    """Follows a journal from a thread and notes when the run got further than ever before."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="commit-watcher", daemon=True)
        self._position = 0
        self._tail = b""
        self._reached = 0  # in the present history
        self.count = 0  # the most that was ever committed
        self.advances: list[tuple[float, int]] = []  # monotonic time, count
        self._at_deaths: list[tuple[bytes, ...]] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def note_death(self) -> None:
        """The coordinator was killed: all that its newest checkpoint covers must be found again later."""
        covered = max((int(path.stem) for path in self._run.glob("checkpoints/*.safetensors")), default=0)
        self._at_deaths.append(read_commits(self._run).lines[:covered])

    def lost(self) -> int:
        """Rounds or batches that were committed when a coordinator died, or are missing in between."""
        commits = read_commits(self._run)
        return commits.skipped + sum(commits.lost_since(lines) for lines in self._at_deaths)

    def doubled(self) -> int:
        return read_commits(self._run).repeated

    def redone(self) -> int:
        """Batches that were committed and rolled back, as far as the journal still tells."""
        return read_commits(self._run).redone

    def rate(self, start: float, end: float) -> float:
        """Commits per second between two moments."""
        counts = [self._count_at(start), self._count_at(end)]
        return (counts[1] - counts[0]) / (end - start)

    def longest_standstill_s(self, start: float, end: float) -> float:
        """The longest time between two moments in which the run did not get further than before."""
        times = [start, *(at for at, _ in self.advances if start < at < end), end]
        return max(after - before for before, after in itertools.pairwise(times))

    def _count_at(self, moment: float) -> int:
        return max((count for at, count in self.advances if at <= moment), default=0)

    def _follow(self) -> None:
        while not self._done.wait(_POLL_S):
            self._read_news()

    def _read_news(self) -> None:
        journal = self._run / "journal.jsonl"
        if not journal.exists():
            return
        with journal.open("rb") as file:
            size = file.seek(0, 2)
            if size < self._position:  # it was cut to match a checkpoint
                self._position, self._tail, self._reached = 0, b"", 0
            file.seek(self._position)
            news = file.read()
        self._position += len(news)
        *lines, self._tail = (self._tail + news).split(b"\n")
        for number, fields, _ in _numbered([line for line in lines if any(mark in line for mark in _MARKS)]):
            self._reached = int(fields["to"]) if number is None else number + 1
        if self._reached > self.count:
            self.count = self._reached
            self.advances.append((time.monotonic(), self.count))
