"""Opens a run's folder for writing, new or again: locked, with the model and the data that it began with.

new     prepare the job ▶ lock the empty folder ▶ write job.toml and inputs.json
again   lock the folder ▶ find the checkpoint ▶ prepare the job ▶ compare model and data ▶ cut the journal
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from potluck.errors import DamagedFileError, PotluckWarning, RunError, SettingError
from potluck.job import Job, load_job
from potluck.run.fixed_settings import check_fixed_settings
from potluck.run.live_status import is_live_run
from potluck.run.prepared_job import PreparedJob, prepare_job
from potluck.run.resume_point import JOURNAL_FILE, find_resume_point
from potluck.run.run_inputs import INPUTS_FILE, check_run_inputs, describe_inputs, write_run_inputs
from potluck.run.run_lock import LOCK_FILE, lock_run
from potluck.run.run_store import RunStore, Watch
from potluck.run.storage_monitor import map_storage_errors
from potluck.task import Task

__all__ = ["ResumeRequest", "create_run", "load_run_job", "load_saved_job", "reopen_run"]


@dataclass(frozen=True)
class ResumeRequest:
    """Which run is resumed, and with what."""

    folder: Path
    overrides: Sequence[str] = ()
    task: Task | None = None
    data: Path | None = None
    take_over: bool = False  # from a process on another machine, which may be alive


@contextlib.contextmanager
def create_run(
    prepared: PreparedJob, folder: Path | None, watch: Watch | None, stopping: Callable[[], bool]
) -> Iterator[RunStore]:
    """The store of a new run; its folder, if any, must be empty or absent."""
    with contextlib.ExitStack() as stack:
        with map_storage_errors(folder):
            if folder is not None:
                _prepare_folder(folder)
            lock = stack.enter_context(lock_run(folder))
            if folder is not None:
                _check_empty(folder)
                write_run_inputs(folder, describe_inputs(prepared))
            store = RunStore.create_run(prepared.job, lock, watch, stopping)
        yield store


@contextlib.contextmanager
def reopen_run(
    request: ResumeRequest, watch: Watch | None, stopping: Callable[[], bool]
) -> Iterator[tuple[PreparedJob, RunStore]]:
    """The job and the store of a run that goes on from its latest usable checkpoint."""
    folder = request.folder
    job = load_run_job(folder, request.overrides)
    with contextlib.ExitStack() as stack:
        with map_storage_errors(folder):
            lock = stack.enter_context(lock_run(folder, take_over=request.take_over))
            point = find_resume_point(folder, keep_training=is_live_run(folder))
        prepared = prepare_job(job, request.task, request.data, load_weights=point.tensors is None)
        inputs = describe_inputs(prepared)
        compared = check_run_inputs(folder, inputs)
        if point.notice:
            warnings.warn(f"{folder}: {point.notice}", PotluckWarning, stacklevel=3)
        with map_storage_errors(folder):
            store = RunStore.reopen_run(job, lock, point, watch, stopping)
            if not compared:
                write_run_inputs(folder, inputs)
        yield prepared, store


def load_run_job(folder: Path, overrides: Sequence[str]) -> Job:
    """The job of a run's folder, with overrides of settings that may change in a run."""
    if not (folder / "job.toml").exists():
        raise RunError(f"{folder} is not the folder of a run: it has no job.toml")
    if not any((folder / name).exists() for name in (JOURNAL_FILE, "checkpoints", INPUTS_FILE)):
        raise RunError(f"{folder} has a job but no run of it: it has no {JOURNAL_FILE}; start one with `potluck run`")
    saved = load_saved_job(folder / "job.toml")
    job = load_job(folder / "job.toml", overrides, resolved=True)
    check_fixed_settings(saved, job)
    return job


def load_saved_job(path: Path) -> Job:
    """The job that Potluck wrote into a run's folder; DamagedFileError where it is no job any more."""
    try:
        return load_job(path, resolved=True)
    except SettingError as error:
        problem = str(error).replace(f"{path} ", "it ") if path.stat().st_size else "it is empty"
        remedy = "put it back as it was when the run began, from a backup or from the folder of a standby"
        raise DamagedFileError(path, problem, remedy) from None


def _prepare_folder(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
    elif not (folder / LOCK_FILE).exists():
        _check_empty(folder)


def _check_empty(folder: Path) -> None:
    if any(path.name != LOCK_FILE for path in folder.iterdir()):
        raise RunError(f"{folder} is not empty; choose another folder, or `potluck resume {folder}`")
