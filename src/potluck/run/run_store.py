"""A run's folder: journal, checkpoints and summary; also decides when the run stops, evaluates and saves.

runs/<id>/  job.toml · journal.jsonl · checkpoints/00000010.safetensors · summary.json · model.safetensors
            error.txt (the traceback, if code of the user failed) · live.json (of a live run)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from potluck.atomic_file import write_atomically
from potluck.errors import RunError
from potluck.job import Job, dump_job
from potluck.journal import Journal
from potluck.journal.journal_totals import JournalTotals
from potluck.loops.run_progress import RunOutcome, RunProgress
from potluck.model import checkpoint_files
from potluck.run.device_state import DeviceStates, SavedDeviceStates

__all__ = ["RunStore", "Watch"]

Watch = Callable[["RunStore", float], None]
_FLUSH_INTERVAL_S = 0.5
_MAX_SAVING_FRACTION = 0.1  # of the time, for checkpoints beyond those that the job asks for


class CheckpointMetadata(msgspec.Struct):
    """The state of a run at a point from which it can resume, as a checkpoint stores it beside the tensors."""

    time: float
    position: int  # of the journal
    books: RunProgress  # the progress
    kept: SavedDeviceStates = msgspec.field(default_factory=SavedDeviceStates)


class RunStore:
    """Saves one run, and implements the loops' RunPolicy."""

    def __init__(
        self,
        job: Job,
        folder: Path | None,
        checkpoint: CheckpointMetadata,
        watch: Watch | None,
        stopping: Callable[[], bool],
        tensors: dict[str, Tensor] | None = None,
    ) -> None:
        self.job = job
        self.folder = folder
        self.progress = checkpoint.books
        self.start_s = checkpoint.time
        self.device_states = DeviceStates(checkpoint.kept, tensors or {})
        self.tally = JournalTotals()
        self.journal = Journal(folder / "journal.jsonl" if folder else None, checkpoint.position, self.tally)
        self.tensors = tensors
        self.now = checkpoint.time
        self._watch = watch
        self._stopping = stopping
        self._metadata: bytes | None = None
        self._metadata_version = -1  # of the model at that point
        self._saved_version = -1  # of the newest checkpoint file
        self._saves_every_round = False
        self._saved_at, self._saving_s = -math.inf, 0.0  # when it was written, and how long that took
        self._tensors_now: Callable[[], dict[str, Tensor]] = dict
        self._flushed_at = 0.0  # when the journal was last flushed for readers
        self._device_tensors: dict[str, Tensor] = {}  # as they were at the last checkpoint

    @staticmethod
    def create_run(job: Job, folder: Path | None, watch: Watch | None, stopping: Callable[[], bool]) -> RunStore:
        """Start a new run; the folder must be empty or absent."""
        if folder is not None:
            if folder.exists() and any(folder.iterdir()):
                raise RunError(f"{folder} is not empty; choose another folder, or `potluck resume {folder}`")
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "job.toml", dump_job(job).encode())
        return RunStore(job, folder, CheckpointMetadata(0.0, 0, RunProgress()), watch, stopping)

    @staticmethod
    def reopen_run(job: Job, folder: Path, watch: Watch | None, stopping: Callable[[], bool]) -> RunStore:
        """Continue a run from its latest checkpoint."""
        path = checkpoint_files.latest_checkpoint(folder / "checkpoints")
        tensors, metadata = checkpoint_files.read_checkpoint(path)
        try:
            checkpoint = msgspec.json.decode(metadata, type=CheckpointMetadata)
        except msgspec.DecodeError as error:
            raise RunError(f"cannot read checkpoint {path}: {error}") from None
        write_atomically(folder / "job.toml", dump_job(job).encode())
        store = RunStore(job, folder, checkpoint, watch, stopping, tensors)
        store.tally.add_journal(folder / "journal.jsonl")
        store._saved_version = checkpoint.books.version
        return store

    def attach_tensors(self, tensors_now: Callable[[], dict[str, Tensor]]) -> None:
        """Set the function that returns the model's tensors for a checkpoint."""
        self._tensors_now = tensors_now

    # --- the policy ------------------------------------------------------------------------------------------------

    def stop_outcome(self, progress: RunProgress, now: float) -> RunOutcome | None:
        stop = self.job.stop
        accuracy = progress.score.get("accuracy", 0.0)
        if stop.accuracy is not None and accuracy >= stop.accuracy:
            return RunOutcome("done", f"accuracy {accuracy:.2%} reached the target of {stop.accuracy:.2%}")
        if stop.rounds is not None and progress.round >= stop.rounds:
            return RunOutcome("done", f"{stop.rounds} rounds")
        if stop.time is not None and now >= stop.time:
            return RunOutcome("done", f"the time budget of {stop.time} is used up")
        if stop.bytes is not None and progress.traffic_bytes >= stop.bytes:
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

    def save_checkpoint(self, progress: RunProgress, now: float) -> None:
        if self.folder is None:
            return
        self._metadata = msgspec.json.encode(
            CheckpointMetadata(now, self.journal.position(), progress, self.device_states.to_saved())
        )
        self._device_tensors = self.device_states.copy_tensors()
        self._metadata_version = progress.version
        if progress.round == 0 or self.checkpoint_due(progress.round) or self._is_saving_cheap():
            self._write_checkpoint()

    def save_every_round(self) -> None:
        """Save every round while that is cheap: the coordinator of a live run may die at any moment."""
        self._saves_every_round = self.job.checkpoint > 0

    def _is_saving_cheap(self) -> bool:
        return self._saves_every_round and self._saving_s <= _MAX_SAVING_FRACTION * (time.monotonic() - self._saved_at)

    def report_progress(self, progress: RunProgress, now: float) -> None:
        self.now = now
        if time.monotonic() - self._flushed_at > _FLUSH_INTERVAL_S:
            self._flushed_at = time.monotonic()
            self.journal.flush_buffer()
        if self._watch is not None:
            self._watch(self, now)

    # --- the end ---------------------------------------------------------------------------------------------------

    def write_error(self, text: str) -> None:
        if self.folder is not None:
            write_atomically(self.folder / "error.txt", text.encode())

    def finish_run(self, outcome: RunOutcome, wall_s: float, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Write the last checkpoint and the summary, with `extra` keys; returns the summary."""
        if (
            self.folder is not None
            and self._metadata_version == self.progress.version
            and self._saved_version != self._metadata_version
        ):
            self._write_checkpoint()
        self.journal.sync_to_disk()
        self.journal.close()
        summary = {**self._build_summary(outcome, wall_s), **(extra or {})}
        if self.folder is not None:
            write_atomically(self.folder / "summary.json", msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
        return summary

    def _build_summary(self, outcome: RunOutcome, wall_s: float) -> dict[str, Any]:
        progress = self.progress
        return {
            "name": self.job.title,
            "recipe": str(self.job.recipe),
            "seed": self.job.seed,
            "status": outcome.status,
            "reason": outcome.reason,
            "rounds": progress.round,
            "time_s": self.now,
            "accuracy": progress.score.get("accuracy"),
            "loss": progress.score.get("loss"),
            "bytes": progress.traffic_bytes,
            "samples": progress.samples,
            "updates": progress.updates,
            "late": progress.late,
            "refused": progress.refused,
            **self._stream_counts(),
            "devices": self.tally.device_summary(self.now),
            "limit": self.tally.bottleneck_sentence(self.now),
            "wall_s": round(wall_s, 3),
        }

    def _stream_counts(self) -> dict[str, Any]:
        """What became of the samples that streamed in: from the buffers of this process, else from the journal."""
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
