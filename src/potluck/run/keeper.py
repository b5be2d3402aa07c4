"""Keeps a run: its folder, journal and checkpoints, the rules that end it, and the summary.

runs/<id>/  job.toml · journal.jsonl · checkpoints/00000010.safetensors · summary.json · error.txt (if any)
            and the network itself, see `gathering`
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from potluck.errors import RunError
from potluck.job import Job, dumps
from potluck.journal import Journal
from potluck.journal.tally import Tally
from potluck.loops.progress import Books, Ending
from potluck.model import checkpoint
from potluck.run.belongings import Belongings, Kept

__all__ = ["Keeper", "Watch"]

Watch = Callable[["Keeper", float], None]
_SPILL_EVERY_S = 0.5
_SAVING = 0.1  # the most of the time that is spent on saving more often than asked


class Mark(msgspec.Struct):
    """A quiet point of a run, as a checkpoint's words hold it."""

    time: float
    position: int  # of the journal
    books: Books
    kept: Kept = msgspec.field(default_factory=Kept)  # what each device has learned in its present life


class Keeper:
    """Plays the loop's rules, and remembers."""

    def __init__(
        self,
        job: Job,
        folder: Path | None,
        mark: Mark,
        watch: Watch | None,
        stopping: Callable[[], bool],
        tensors: dict[str, Tensor] | None = None,
    ) -> None:
        self.job = job
        self.folder = folder
        self.books = mark.books
        self.start = mark.time
        self.belongings = Belongings(mark.kept, tensors or {})
        self.tally = Tally()
        self.journal = Journal(folder / "journal.jsonl" if folder else None, mark.position, self.tally)
        self.tensors = tensors
        self.now = mark.time
        self._watch = watch
        self._stopping = stopping
        self._mark: bytes | None = None
        self._marked = -1  # the version that the mark is of
        self._saved = -1  # the version of the newest checkpoint
        self._often = False
        self._saved_at, self._saving_s = -math.inf, 0.0  # when that was, and how long it took
        self._tensors_now: Callable[[], dict[str, Tensor]] = dict
        self._spilled = 0.0  # when others were last shown the journal
        self._kept_tensors: dict[str, Tensor] = {}  # of the devices, as they were at the mark

    @staticmethod
    def fresh(job: Job, folder: Path | None, watch: Watch | None, stopping: Callable[[], bool]) -> Keeper:
        """Begin a run."""
        if folder is not None:
            if folder.exists() and any(folder.iterdir()):
                raise RunError(f"{folder} is not empty; choose another folder, or `potluck resume {folder}`")
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / "job.toml", dumps(job).encode())
        return Keeper(job, folder, Mark(0.0, 0, Books()), watch, stopping)

    @staticmethod
    def again(job: Job, folder: Path, watch: Watch | None, stopping: Callable[[], bool]) -> Keeper:
        """Take a run up from its latest checkpoint."""
        path = checkpoint.latest(folder / "checkpoints")
        tensors, words = checkpoint.read(path)
        try:
            mark = msgspec.json.decode(words, type=Mark)
        except msgspec.DecodeError as error:
            raise RunError(f"cannot read checkpoint {path}: {error}") from None
        _write(folder / "job.toml", dumps(job).encode())
        keeper = Keeper(job, folder, mark, watch, stopping, tensors)
        keeper.tally.read(folder / "journal.jsonl")
        keeper._saved = mark.books.version
        return keeper

    def attach(self, tensors_now: Callable[[], dict[str, Tensor]]) -> None:
        """Where the tensors to save come from."""
        self._tensors_now = tensors_now

    # --- rules of the loop -----------------------------------------------------------------------------------------

    def ending(self, books: Books, now: float) -> Ending | None:
        stop = self.job.stop
        accuracy = books.score.get("accuracy", 0.0)
        if stop.accuracy is not None and accuracy >= stop.accuracy:
            return Ending("done", f"accuracy {accuracy:.2%} reached the target of {stop.accuracy:.2%}")
        if stop.rounds is not None and books.round >= stop.rounds:
            return Ending("done", f"{stop.rounds} rounds")
        if stop.time is not None and now >= stop.time:
            return Ending("done", f"the time budget of {stop.time} is used up")
        if stop.bytes is not None and books.traffic >= stop.bytes:
            return Ending("done", f"the traffic budget of {stop.bytes} is used up")
        return None

    def interruption(self) -> Ending | None:
        return Ending("interrupted", "stopped by the user") if self._stopping() else None

    def wants_score(self, round: int) -> bool:
        every, stop = self.job.evaluate, self.job.stop
        if self.job.timing_only:
            return False
        return (every > 0 and round % every == 0) or round == stop.rounds

    def save_due(self, round: int) -> bool:
        every = self.job.checkpoint
        return self.folder is not None and every > 0 and round % every == 0

    def save(self, books: Books, now: float) -> None:
        if self.folder is None:
            return
        self._mark = msgspec.json.encode(Mark(now, self.journal.position(), books, self.belongings.kept()))
        self._kept_tensors = self.belongings.tensors()
        self._marked = books.version
        if books.round == 0 or self.save_due(books.round) or self._is_cheap_now():
            self._write_checkpoint()

    def save_often(self) -> None:
        """For a run whose coordinator may die at any moment: save every round, as long as that costs little."""
        self._often = self.job.checkpoint > 0

    def _is_cheap_now(self) -> bool:
        return self._often and self._saving_s <= _SAVING * (time.monotonic() - self._saved_at)

    def watch(self, books: Books, now: float) -> None:
        self.now = now
        if time.monotonic() - self._spilled > _SPILL_EVERY_S:
            self._spilled = time.monotonic()
            self.journal.spill()
        if self._watch is not None:
            self._watch(self, now)

    # --- the end ---------------------------------------------------------------------------------------------------

    def keep_error(self, text: str) -> None:
        if self.folder is not None:
            _write(self.folder / "error.txt", text.encode())

    def finish(self, ending: Ending, wall_s: float, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Save what can be taken up again, and the summary with what else there is to say."""
        if self.folder is not None and self._marked == self.books.version and self._saved != self._marked:
            self._write_checkpoint()
        self.journal.flush()
        self.journal.close()
        summary = {**self._summary(ending, wall_s), **(more or {})}
        if self.folder is not None:
            _write(self.folder / "summary.json", msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
        return summary

    def _summary(self, ending: Ending, wall_s: float) -> dict[str, Any]:
        books = self.books
        return {
            "name": self.job.title,
            "recipe": self.job.recipe,
            "seed": self.job.seed,
            "status": ending.status,
            "reason": ending.reason,
            "rounds": books.round,
            "time_s": self.now,
            "accuracy": books.score.get("accuracy"),
            "loss": books.score.get("loss"),
            "bytes": books.traffic,
            "samples": books.samples,
            "updates": books.updates,
            "late": books.late,
            "refused": books.refused,
            **self._streams(),
            "devices": self.tally.devices(self.now),
            "limit": self.tally.limit(self.now),
            "wall_s": round(wall_s, 3),
        }

    def _streams(self) -> dict[str, Any]:
        """Where the samples went that streamed in: by the buffers that are here, else by what devices told."""
        account = self.belongings.account
        streams = self.tally.streams() if account is None else msgspec.to_builtins(account)
        return {} if streams is None else {"streams": streams}

    def _write_checkpoint(self) -> None:
        assert self.folder is not None
        assert self._mark is not None
        began = time.monotonic()
        self.journal.flush()
        checkpoint.write(
            self.folder / "checkpoints",
            self._marked,
            {**self._tensors_now(), **self._kept_tensors},
            self._mark.decode(),
        )
        self._saved = self._marked
        self._saved_at = time.monotonic()
        self._saving_s = self._saved_at - began


def _write(path: Path, content: bytes) -> None:
    aside = path.with_name(path.name + ".partial")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
