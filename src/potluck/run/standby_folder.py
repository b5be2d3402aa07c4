"""A standby's folder: locked, with what `potluck resume` needs beside the copy, and a status that shows the lag."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from potluck.atomic_file import mark_unusable, write_atomically
from potluck.errors import DamagedFileError, RunError, UserError
from potluck.job import dump_job
from potluck.journal.standby_status import FollowStatus
from potluck.run.folder_mending import mend_live_folder
from potluck.run.leadership import (
    LeadershipRecord,
    has_leadership_record,
    load_leadership_record,
    save_leadership_record,
)
from potluck.run.live_options import KeptOptions, load_options, save_options
from potluck.run.live_status import LiveStatus, read_live_status, write_live_status
from potluck.run.prepared_job import PreparedJob
from potluck.run.resume_point import find_resume_point
from potluck.run.run_inputs import check_run_inputs, describe_inputs, write_run_inputs
from potluck.run.run_lock import LOCK_FILE, RunLock, lock_run
from potluck.run.run_opening import load_saved_job
from potluck.run.run_store import RunStore, Watch
from potluck.run.storage_monitor import map_storage_errors
from potluck.worlds.live.folder_copy import FolderCopy
from potluck.worlds.live.replica_client import FollowedLeader, FollowRefusedError
from potluck.worlds.live.replica_messages import FolderManifest, LeaderOptions

__all__ = ["StandbyFolder"]

_STATUS_INTERVAL_S = 1.0

_log = logging.getLogger("potluck")


class StandbyFolder:
    """Where a standby keeps its copy of a run; known from the start, or named after the leader's run.

    `options` are those with which it would lead: the standby's own, and from the leader what belongs to the run.
    """

    def __init__(self, prepared: PreparedJob, options: KeptOptions, path: Path | None) -> None:
        self._prepared = prepared
        self.options = options
        self.path = path
        self.record = LeadershipRecord(run="", term=0)
        if path is not None and has_leadership_record(path):
            mend_live_folder(path)
            self.record = load_leadership_record(path)
        self._was_led_with = frozenset[str]()
        self._has_followed = False  # a leader, since it was started
        self._lock: RunLock | None = None
        self._closing = contextlib.ExitStack()
        self._status: LiveStatus | None = None

    def open_existing(self, listen: str) -> FolderCopy | None:
        """The copy of a standby or leader that is started again; None where there is none yet."""
        if self.path is None or not self.record.run:
            return None
        status, options = read_live_status(self.path), load_options(self.path)
        self._was_led_with = frozenset() if status is None else frozenset(status.former or status.joined)
        if options is not None and options.serve is not None:
            self.options = self._options_led_by(options.serve.of_the_run())
        copy = self._open(self.path)
        with map_storage_errors(self.path):  # it can be promoted before it reaches a leader
            self._write_status(listen, FollowStatus(leader="", term=self.record.term), {})
        return copy

    def open_copy(self, manifest: FolderManifest) -> FolderCopy:
        """A new copy of the leader's run."""
        folder = self.path or Path("runs") / Path(manifest.run).name
        if not self.record.run and has_leadership_record(folder):
            mend_live_folder(folder)
            self.record = load_leadership_record(folder)
        is_used = folder.exists() and any(path.name != LOCK_FILE for path in folder.iterdir())
        if is_used and self.record.run != manifest.run:
            raise FollowRefusedError(
                f"{folder} holds something else than run {manifest.run}; choose another folder with --out"
            )
        copy = self._open(folder)
        self.path, self.record.run = folder, manifest.run
        return copy

    def _open(self, folder: Path) -> FolderCopy:
        """Another job, another model or other data than the copy's are refused."""
        inputs, job = describe_inputs(self._prepared), dump_job(self._prepared.job).encode()
        path = folder / "job.toml"
        damage = _find_job_damage(path)
        if damage is None and path.exists() and path.read_bytes() != job:
            raise FollowRefusedError(
                f"{folder} holds a run of another job; start it with the same job, --set and --seed"
            )
        with map_storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock = self._closing.enter_context(lock_run(folder))
                check_run_inputs(folder, inputs)
            except UserError as error:
                raise FollowRefusedError(str(error)) from None
            if damage is not None:
                _log.warning("%s is damaged (%s) and is replaced by the job that was given", path, damage.problem)
                mark_unusable(path)
            write_run_inputs(folder, inputs)
            save_options(folder, self.options)
            write_atomically(path, job)
            return FolderCopy(folder)

    def accept_manifest(self, manifest: FolderManifest) -> None:
        """Follow leaders of this run only, and never one of an earlier term."""
        if self.record.run and manifest.run != self.record.run:
            raise FollowRefusedError(f"the leader's run is {manifest.run}, and this is a copy of {self.record.run}")
        if manifest.term < self.record.term:
            raise RunError(f"the leader there led in term {manifest.term}, but term {self.record.term} has begun")
        options = self.options if manifest.options is None else self._options_led_by(manifest.options)
        if options != self.options and self._lock is not None:
            assert self.path is not None
            save_options(self.path, options)
        self.options = options

    def _options_led_by(self, leader: LeaderOptions) -> KeptOptions:
        """To lead as this leader does."""
        assert self.options.serve is not None
        return replace(self.options, serve=self.options.serve.as_led_by(leader))

    def show_lag(self, state: FollowedLeader, leader: str, listen: str) -> None:
        """Keep the folder's record and `live.json` up to date."""
        assert state.manifest is not None
        assert self.path is not None
        is_new_leader = not self._has_followed or state.manifest.term != self.record.term
        if is_new_leader:
            self.record.term, self.record.promoted = state.manifest.term, False
            save_leadership_record(self.path, self.record)
        self._has_followed, self._was_led_with = True, frozenset(state.manifest.members)
        if is_new_leader or self._status is None or time.time() - self._status.updated > _STATUS_INTERVAL_S:
            follows = FollowStatus(
                leader=leader,
                term=state.manifest.term,
                lag_checkpoints=state.lag_checkpoints,
                lag_bytes=state.lag_bytes,
                silent_s=round(time.monotonic() - state.heard_at, 1),
            )
            self._write_status(listen, follows, state.manifest.members)

    def _write_status(self, listen: str, follows: FollowStatus, joined: Mapping[str, int]) -> None:
        assert self.path is not None
        if self._status is None:
            serving = self.options.serve
            self._status = LiveStatus.for_this_process(listen, None if serving is None else serving.certs)
        self._status.term, self._status.follows = follows.term, follows
        self._status.run, self._status.coordinator = self.record.run, self.record.coordinator
        self._status.joined, self._status.former = dict(joined), sorted(self._was_led_with)
        write_live_status(self.path, self._status)

    def begin_leading(self, watch: Watch | None, stopping: Callable[[], bool]) -> tuple[RunStore, frozenset[str]]:
        """The run, from its newest checkpoint or from its start, and the devices that the former leader had."""
        assert self.path is not None
        assert self._lock is not None
        self._status = None
        with map_storage_errors(self.path):
            point = find_resume_point(self.path, keep_training=True)
            if point.notice:
                _log.warning("%s: %s", self.path, point.notice)
            return RunStore.reopen_run(self._prepared.job, self._lock, point, watch, stopping), self._was_led_with

    def close(self) -> None:
        if self._status is not None and self.path is not None:
            self._status.ended = "the standby has ended"
            with contextlib.suppress(OSError):  # why it ends says more
                write_live_status(self.path, self._status)
        self._closing.close()


def _find_job_damage(path: Path) -> DamagedFileError | None:
    try:
        if path.exists():
            load_saved_job(path)
    except DamagedFileError as error:
        return error
    return None
