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
from potluck.job import Job, dump_job
from potluck.journal import Journal
from potluck.journal.journal_totals import JournalTotals
from potluck.loops.run_progress import RunOutcome, RunProgress
from potluck.model import checkpoint_files
from potluck.run.device_state import DeviceStates, SavedDeviceStates

__all__ = ["RunStore", "Watch"]

Watch = Callable[["RunStore", float], None]
_SPILL_EVERY_S = 0.5
_SAVING = 0.1  # the most of the time that is spent on saving more often than asked


class CheckpointMetadata(msgspec.Struct):
    """A quiet point of a run, as a checkpoint's words hold it."""

    time: float
    position: int  # of the journal
    books: RunProgress
    kept: SavedDeviceStates = msgspec.field(
        default_factory=SavedDeviceStates
    )  # what each device has learned in its present life


class RunStore:
    """Plays the loop's rules, and remembers."""

    def __init__(
        self,
        job: Job,
        folder: Path | None,
        mark: CheckpointMetadata,
        watch: Watch | None,
        stopping: Callable[[], bool],
        tensors: dict[str, Tensor] | None = None,
    ) -> None:
        self.job = job
        self.folder = folder
        self.progress = mark.books
        self.start_s = mark.time
        self.device_states = DeviceStates(mark.kept, tensors or {})
        self.tally = JournalTotals()
        self.journal = Journal(folder / "journal.jsonl" if folder else None, mark.position, self.tally)
        self.tensors = tensors
        self.now = mark.time
        self._watch = watch
        self._stopping = stopping
        self._metadata: bytes | None = None
        self._metadata_version = -1  # the version that the mark is of
        self._saved_version = -1  # the version of the newest checkpoint
        self._saves_every_round = False
        self._saved_at, self._saving_s = -math.inf, 0.0  # when that was, and how long it took
        self._tensors_now: Callable[[], dict[str, Tensor]] = dict
        self._flushed_at = 0.0  # when others were last shown the journal
        self._device_tensors: dict[str, Tensor] = {}  # of the devices, as they were at the mark

    @staticmethod
    def create_run(job: Job, folder: Path | None, watch: Watch | None, stopping: Callable[[], bool]) -> RunStore:
        """Begin a run."""
        if folder is not None:
            if folder.exists() and any(folder.iterdir()):
                raise RunError(f"{folder} is not empty; choose another folder, or `potluck resume {folder}`")
            folder.mkdir(parents=True, exist_ok=True)
            _write_atomically(folder / "job.toml", dump_job(job).encode())
        return RunStore(job, folder, CheckpointMetadata(0.0, 0, RunProgress()), watch, stopping)

    @staticmethod
    def reopen_run(job: Job, folder: Path, watch: Watch | None, stopping: Callable[[], bool]) -> RunStore:
        """Take a run up from its latest checkpoint."""
        path = checkpoint_files.latest_checkpoint(folder / "checkpoints")
        tensors, words = checkpoint_files.read_checkpoint(path)
        try:
            mark = msgspec.json.decode(words, type=CheckpointMetadata)
        except msgspec.DecodeError as error:
            raise RunError(f"cannot read checkpoint {path}: {error}") from None
        _write_atomically(folder / "job.toml", dump_job(job).encode())
        keeper = RunStore(job, folder, mark, watch, stopping, tensors)
        keeper.tally.add_journal(folder / "journal.jsonl")
        keeper._saved_version = mark.books.version
        return keeper

    def attach_tensors(self, tensors_now: Callable[[], dict[str, Tensor]]) -> None:
        """Where the tensors to save come from."""
        self._tensors_now = tensors_now

    # --- rules of the loop -----------------------------------------------------------------------------------------

    def stop_outcome(self, books: RunProgress, now: float) -> RunOutcome | None:
        stop = self.job.stop
        accuracy = books.score.get("accuracy", 0.0)
        if stop.accuracy is not None and accuracy >= stop.accuracy:
            return RunOutcome("done", f"accuracy {accuracy:.2%} reached the target of {stop.accuracy:.2%}")
        if stop.rounds is not None and books.round >= stop.rounds:
            return RunOutcome("done", f"{stop.rounds} rounds")
        if stop.time is not None and now >= stop.time:
            return RunOutcome("done", f"the time budget of {stop.time} is used up")
        if stop.bytes is not None and books.traffic_bytes >= stop.bytes:
            return RunOutcome("done", f"the traffic budget of {stop.bytes} is used up")
        return None

    def interrupt_outcome(self) -> RunOutcome | None:
        return RunOutcome("interrupted", "stopped by the user") if self._stopping() else None

    def evaluation_due(self, round: int) -> bool:
        every, stop = self.job.evaluate, self.job.stop
        if self.job.timing_only:
            return False
        return (every > 0 and round % every == 0) or round == stop.rounds

    def checkpoint_due(self, round: int) -> bool:
        every = self.job.checkpoint
        return self.folder is not None and every > 0 and round % every == 0

    def save_checkpoint(self, books: RunProgress, now: float) -> None:
        if self.folder is None:
            return
        self._metadata = msgspec.json.encode(
            CheckpointMetadata(now, self.journal.position(), books, self.device_states.to_saved())
        )
        self._device_tensors = self.device_states.copy_tensors()
        self._metadata_version = books.version
        if books.round == 0 or self.checkpoint_due(books.round) or self._is_saving_cheap():
            self._write_checkpoint()

    def save_every_round(self) -> None:
        """For a run whose coordinator may die at any moment: save every round, as long as that costs little."""
        self._saves_every_round = self.job.checkpoint > 0

    def _is_saving_cheap(self) -> bool:
        return self._saves_every_round and self._saving_s <= _SAVING * (time.monotonic() - self._saved_at)

    def report_progress(self, books: RunProgress, now: float) -> None:
        self.now = now
        if time.monotonic() - self._flushed_at > _SPILL_EVERY_S:
            self._flushed_at = time.monotonic()
            self.journal.flush_buffer()
        if self._watch is not None:
            self._watch(self, now)

    # --- the end ---------------------------------------------------------------------------------------------------

    def write_error(self, text: str) -> None:
        if self.folder is not None:
            _write_atomically(self.folder / "error.txt", text.encode())

    def finish_run(self, ending: RunOutcome, wall_s: float, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Save what can be taken up again, and the summary with what else there is to say."""
        if (
            self.folder is not None
            and self._metadata_version == self.progress.version
            and self._saved_version != self._metadata_version
        ):
            self._write_checkpoint()
        self.journal.sync_to_disk()
        self.journal.close()
        summary = {**self._build_summary(ending, wall_s), **(more or {})}
        if self.folder is not None:
            _write_atomically(self.folder / "summary.json", msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
        return summary

    def _build_summary(self, ending: RunOutcome, wall_s: float) -> dict[str, Any]:
        books = self.progress
        return {
            "name": self.job.title,
            "recipe": str(self.job.recipe),
            "seed": self.job.seed,
            "status": ending.status,
            "reason": ending.reason,
            "rounds": books.round,
            "time_s": self.now,
            "accuracy": books.score.get("accuracy"),
            "loss": books.score.get("loss"),
            "bytes": books.traffic_bytes,
            "samples": books.samples,
            "updates": books.updates,
            "late": books.late,
            "refused": books.refused,
            **self._stream_counts(),
            "devices": self.tally.device_summary(self.now),
            "limit": self.tally.bottleneck_sentence(self.now),
            "wall_s": round(wall_s, 3),
        }

    def _stream_counts(self) -> dict[str, Any]:
        """Where the samples went that streamed in: by the buffers that are here, else by what devices told."""
        account = self.device_states.sample_account
        streams = self.tally.stream_summary() if account is None else msgspec.to_builtins(account)
        return {} if streams is None else {"streams": streams}

    def _write_checkpoint(self) -> None:
        assert self.folder is not None
        assert self._metadata is not None
        began = time.monotonic()
        self.journal.sync_to_disk()
        checkpoint_files.write_checkpoint(
            self.folder / "checkpoints",
            self._metadata_version,
            {**self._tensors_now(), **self._device_tensors},
            self._metadata.decode(),
        )
        self._saved_version = self._metadata_version
        self._saved_at = time.monotonic()
        self._saving_s = self._saved_at - began


def _write_atomically(path: Path, content: bytes) -> None:
    aside = path.with_name(path.name + ".partial")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
