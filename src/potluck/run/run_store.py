"""A run's folder: journal, checkpoints and summary; also decides when the run stops, evaluates and saves.

runs/<id>/  job.toml · journal.jsonl · checkpoints/00000010.safetensors · summary.json · model.safetensors
            best.safetensors (by a metric) · inputs.json (digests of model and data) · live.json (of a live run)
            run.lock (while a process writes to it) · error.txt (the traceback, if code of the user failed)
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from torch import Tensor

from potluck.atomic_file import write_atomically
from potluck.checkpoint_files import CHECKPOINT_FOLDER
from potluck.errors import RunError
from potluck.job import Job, dump_job
from potluck.journal import Instant, Journal, warn_of_unreadable
from potluck.journal.journal_totals import JournalTotals
from potluck.loops.node import COORDINATOR
from potluck.loops.run_progress import BestModel, RunOutcome, RunProgress
from potluck.model import weights_file
from potluck.model.metrics import TaskMetrics
from potluck.model.model_state import are_finite
from potluck.run.best_model_file import BestModelFile
from potluck.run.commit_guard import CommitGuard
from potluck.run.device_state import DeviceStates
from potluck.run.notebook_progress import NotebookProgress, is_notebook
from potluck.run.resume_point import JOURNAL_FILE, CheckpointMetadata, ResumePoint, beginning
from potluck.run.run_lock import RunLock
from potluck.run.run_summary import build_summary
from potluck.run.storage_monitor import StorageMonitor
from potluck.units import format_metric

__all__ = ["MAX_HELD_BYTES", "RunStore", "Watch"]

MAX_HELD_BYTES = 64 << 20  # of journal records, while a live run's folder cannot be written

_log = logging.getLogger("potluck")

Watch = Callable[["RunStore", float], None]
_FLUSH_INTERVAL_S = 0.5
_MAX_SAVING_FRACTION = 0.1  # of the time, for checkpoints beyond those that the job asks for


class RunStore:
    """Saves one run, and implements the loops' RunPolicy."""

    def __init__(
        self, job: Job, lock: RunLock, point: ResumePoint, watch: Watch | None, stopping: Callable[[], bool]
    ) -> None:
        checkpoint, tensors, folder = point.checkpoint, point.tensors, lock.folder
        self._lock = lock
        self.job = job
        self.folder = folder
        self.progress = checkpoint.progress
        self.start_s = checkpoint.time
        self.device_states = DeviceStates(checkpoint.kept, tensors or {})
        self.tally = JournalTotals(keep_scalars=folder is None)
        self.journal = Journal(folder / JOURNAL_FILE if folder else None, checkpoint.position, self.tally)
        self.storage = StorageMonitor(folder)
        self.is_live = False
        self._dropped_recorded = 0  # records that the journal says it misses
        self.tensors = tensors
        self.now = checkpoint.time
        self._watch = watch
        self._notebook = NotebookProgress() if watch is None and is_notebook() else None
        self._stopping = stopping
        self._stop_requested = False
        self._metadata: bytes | None = None
        self._metadata_version = -1  # of the model at that point
        self._metadata_round = 0
        self._saved_version = -1  # of the newest checkpoint file
        self._saved_round = checkpoint.progress.round
        self._skipped_version = -1  # that was not worth a checkpoint
        self._saves_every_round = False
        self._saved_at, self._saving_s = -math.inf, 0.0  # when it was written, and how long that took
        self._tensors_now: Callable[[], dict[str, Tensor]] = dict
        self._flushed_at = 0.0  # when the journal was last flushed for readers
        self._device_tensors: dict[str, Tensor] = {}  # as they were at the last checkpoint
        self.metrics = TaskMetrics()
        self._best_file: BestModelFile | None = None
        self._best_changed = False  # since it was written
        self.guard = CommitGuard()  # decides whether this process may still commit

    @staticmethod
    def create_run(job: Job, lock: RunLock, watch: Watch | None, stopping: Callable[[], bool]) -> RunStore:
        """Start a new run in a folder that has only its lock."""
        if lock.folder is not None:
            write_atomically(lock.folder / "job.toml", dump_job(job).encode())
        return RunStore(job, lock, beginning(), watch, stopping)

    @staticmethod
    def reopen_run(
        job: Job, lock: RunLock, point: ResumePoint, watch: Watch | None, stopping: Callable[[], bool]
    ) -> RunStore:
        """Continue a run from a checkpoint; its journal is cut to match."""
        assert lock.folder is not None
        point.prepare_folder()
        write_atomically(lock.folder / "job.toml", dump_job(job).encode())
        store = RunStore(job, lock, point, watch, stopping)
        warn_of_unreadable(lock.folder, store.tally.add_journal(lock.folder / JOURNAL_FILE))
        if point.tensors is not None:
            store._saved_version = point.checkpoint.progress.version
        return store

    def attach_tensors(self, tensors_now: Callable[[], dict[str, Tensor]]) -> None:
        """Set the function that returns the model's tensors for a checkpoint."""
        self._tensors_now = tensors_now

    def attach_metrics(self, metrics: TaskMetrics, best: BestModelFile | None) -> None:
        """Set what the task is evaluated by and, if the best model is kept, how."""
        self.metrics, self._best_file = metrics, best
        if self.folder is None or best is None:
            self._best_file = None
            return
        known, saved = self.progress.best_model, best.read_record(self.folder)
        if known is None or known.metric != best.metric or (saved is not None and saved.round > known.round):
            self.progress.best_model = saved

    @property
    def keeps_best(self) -> bool:
        return self._best_file is not None

    # --- the policy ------------------------------------------------------------------------------------------------

    def stop_outcome(self, progress: RunProgress, now: float) -> RunOutcome | None:
        stop = self.job.stop
        for name, target in stop.targets.items():
            value = progress.score.get(name)
            if value is None and name == "accuracy" and self.metrics.listed is None and progress.score:
                reason = "there is no accuracy to reach a target of: the outputs are not scores of the targets' classes"
                return RunOutcome("failed", reason)
            if value is not None and (value >= target if self.metrics.directions[name] else value <= target):
                shown, wanted = format_metric(name, value), format_metric(name, target)
                return RunOutcome("done", f"{name} {shown} reached the target of {wanted}")
        if stop.rounds is not None and progress.round >= stop.rounds:
            return RunOutcome("done", f"{stop.rounds} rounds")
        if stop.time is not None and now >= stop.time:
            return RunOutcome("done", f"the time budget of {stop.time} is used up")
        if stop.bytes is not None and progress.traffic_bytes >= stop.bytes:
            return RunOutcome("done", f"the traffic budget of {stop.bytes} is used up")
        return None

    def interrupt_outcome(self) -> RunOutcome | None:
        if self.journal.file is not None and self.journal.file.is_overfull:
            return RunOutcome("failed", "the run's folder cannot be written, and memory holds no more records")
        stops = self._stop_requested or self._stopping()
        return RunOutcome("interrupted", "stopped by the user") if stops else None

    def request_stop(self) -> None:
        """Interrupt the run at the next point at which it can be resumed."""
        self._stop_requested = True

    def evaluation_due(self, round: int) -> bool:
        every, stop = self.job.evaluate, self.job.stop
        if self.job.timing_only:
            return False
        return (every > 0 and round % every == 0) or round == stop.rounds

    def check_may_commit(self) -> None:
        self.guard.check()

    def checkpoint_due(self, round: int) -> bool:
        every = self.job.checkpoint
        return self.folder is not None and every > 0 and round % every == 0

    def save_checkpoint(self, progress: RunProgress, now: float) -> None:
        if self.folder is None:
            return
        if progress.round > 0 and not progress.scores_finitely:
            self._skip_checkpoint(progress, now, "the loss of its latest evaluation is not finite")
            return
        self._metadata = msgspec.json.encode(
            CheckpointMetadata(now, self.journal.mark_position(), progress, self.device_states.to_saved())
        )
        self._device_tensors = self.device_states.copy_tensors()
        self._metadata_version, self._metadata_round = progress.version, progress.round
        if self.storage.problem is not None:
            if self.job.checkpoint > 0:
                self.storage.postpone("checkpoint")
            self.catch_up()
        elif progress.round == 0 or self.checkpoint_due(progress.round) or self._is_saving_cheap():
            self._write_checkpoint()

    def _skip_checkpoint(self, progress: RunProgress, now: float, reason: str) -> None:
        """Keep the checkpoint before as the newest: a model that has diverged is not worth resuming from."""
        if self._skipped_version == progress.version:
            return
        self._skipped_version = progress.version
        _log.warning("round %d is not saved as a checkpoint: %s", progress.round, reason)
        fields = {"round": progress.round, "reason": reason}
        self.journal.write_record(Instant(COORDINATOR, "checkpoint skipped", now, fields))

    def save_every_round(self) -> None:
        """Save every round while that is cheap: the coordinator of a live run may die at any moment."""
        self._saves_every_round = self.job.checkpoint > 0

    def outlive_outages(self) -> None:
        """While the folder of this live run cannot be written, hold records in memory and go on."""
        self.is_live = True
        self.storage.tolerate_outages()
        if self.journal.file is not None:
            self.journal.file.hold_lines(MAX_HELD_BYTES)

    def catch_up(self) -> None:
        """Write what could not be written, if it can be now; a live run calls this regularly."""
        file = self.journal.file
        if self.storage.problem is None or file is None:
            return
        if self.storage.is_retry_due() and self.storage.attempt("journal", self.journal.flush_buffer):
            self._record_dropped()
            is_current = self._metadata_version == self.progress.version
            if self.storage.has_failed("checkpoint") and is_current:
                self._write_checkpoint()
        self.storage.renew_warning(file.held_bytes, file.held_lines, file.dropped, self.progress.round)

    def _record_dropped(self) -> None:
        """Note in the journal how many records are missing from it."""
        dropped = 0 if self.journal.file is None else self.journal.file.dropped
        if dropped > self._dropped_recorded:
            fields = {"round": self.progress.round, "records": dropped - self._dropped_recorded}
            self.journal.write_record(Instant("coordinator", "records_dropped", self.now, fields))
            self._dropped_recorded = dropped

    def keep_best(self, progress: RunProgress) -> None:
        """Remember the newest version if it was just evaluated and is the best; it is written with a checkpoint."""
        best, known = self._best_file, progress.best_model
        if best is None or progress.scored_round != progress.round or best.metric not in progress.score:
            return
        value = progress.score[best.metric]
        better = known is None or (value > known.value if self.metrics.directions[best.metric] else value < known.value)
        if better:
            progress.best_model = BestModel(best.metric, value, progress.round)
            best.keep()
            self._best_changed = True

    def _write_best(self) -> None:
        if self._best_changed and self._best_file is not None:
            assert self.folder is not None
            assert self.progress.best_model is not None
            self._best_file.write(self.folder, self.progress.best_model)
            self._best_changed = False

    def _is_saving_cheap(self) -> bool:
        return self._saves_every_round and self._saving_s <= _MAX_SAVING_FRACTION * (time.monotonic() - self._saved_at)

    def report_progress(self, progress: RunProgress, now: float) -> None:
        self.now = now
        if time.monotonic() - self._flushed_at > _FLUSH_INTERVAL_S:
            self._flushed_at = time.monotonic()
            self._check_owner()
            if self.storage.problem is None:
                self.storage.attempt("journal", self.journal.flush_buffer)
        if self._watch is not None:
            self._watch(self, now)
        elif self._notebook is not None:
            self._notebook.show_round(self, now)

    # --- the end ---------------------------------------------------------------------------------------------------

    def write_error(self, text: str) -> None:
        if self.folder is not None:
            folder = self.folder
            self.storage.attempt("error.txt", lambda: write_atomically(folder / "error.txt", text.encode()))

    def write_last_checkpoint(self) -> None:
        """Write the state at the end of the run, unless the newest checkpoint has it."""
        if (
            self.folder is not None
            and self._metadata_version == self.progress.version
            and self._saved_version != self._metadata_version
        ):
            self._write_checkpoint()

    def finish_run(self, outcome: RunOutcome, wall_s: float, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Write the last checkpoint and the summary, with `extra` keys; returns the summary."""
        self.write_last_checkpoint()
        self.storage.attempt("best model", self._write_best)
        self.storage.attempt("journal", self.journal.sync_to_disk)
        if self._notebook is not None:
            self._notebook.show_end(self, outcome.status)
        summary = {**build_summary(self, outcome, wall_s), **(extra or {})}
        if self.folder is not None:
            path, content = self.folder / "summary.json", msgspec.json.format(msgspec.json.encode(summary)) + b"\n"
            self.storage.attempt("summary", lambda: write_atomically(path, content))
        return summary

    def close(self) -> None:
        """Release the folder; raises StorageError if something of a live run could not be written to it."""
        problem, lost = self.storage.problem, self._describe_loss()
        self.storage.close()
        self.journal.abandon()
        if problem is not None:
            raise self.storage.error(problem, lost)

    def abandon(self) -> None:
        """Release the folder after an error."""
        self.storage.close()
        with contextlib.suppress(OSError):
            self.journal.close()

    def _describe_loss(self) -> str:
        """What is not on disk, for the error at the end."""
        texts, file = [], self.journal.file
        if (unsaved := self.progress.round - self._saved_round) > 0 and self.storage.has_failed("checkpoint"):
            texts.append(f"{unsaved:,} round{'s' * (unsaved > 1)} since the checkpoint of round {self._saved_round:,}")
        if file is not None and (records := file.held_lines + file.dropped):
            texts.append(f"{records:,} journal records")
        texts += [what for what in ("trained model", "best model", "summary") if self.storage.has_failed(what)]
        return ", ".join(texts)

    def _check_owner(self) -> None:
        """Write nothing more where another process has taken the folder over."""
        try:
            self._lock.check_held()
        except RunError:
            self.journal.abandon()
            raise

    def _write_checkpoint(self) -> None:
        self.guard.check()
        began = time.monotonic()
        self._check_owner()
        if not are_finite(self._tensors_now().values()):
            self._skip_checkpoint(self.progress, self.now, "its weights or its optimizer's state are not finite")
            return
        if self.storage.attempt("checkpoint", self._write_checkpoint_files):
            self._saved_version, self._saved_round = self._metadata_version, self._metadata_round
            self.guard.on_checkpoint(self._saved_version)
        self._saved_at = time.monotonic()
        self._saving_s = self._saved_at - began

    def _write_checkpoint_files(self) -> None:
        assert self.folder is not None
        self.journal.sync_to_disk()
        self._write_best()
        weights_file.write_checkpoint(
            self.folder / CHECKPOINT_FOLDER,
            self._metadata_version,
            {**self._tensors_now(), **self._device_tensors},
            self._checkpoint_metadata().decode(),
        )

    def _checkpoint_metadata(self) -> bytes:
        """With the journal's position, which is lower than at the save point if records before it were dropped."""
        assert self._metadata is not None
        if self.journal.file is None or not self.journal.file.dropped:
            return self._metadata
        checkpoint = msgspec.json.decode(self._metadata, type=CheckpointMetadata)
        checkpoint.position = self.journal.file.marked_position
        return msgspec.json.encode(checkpoint)
