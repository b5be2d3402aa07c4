"""Resumes a run from its latest checkpoint: a simulated one as if it had never stopped, a live one as it was served."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.errors import RunError, UserError
from potluck.run.argument_checks import check_folder
from potluck.run.folder_mending import mend_live_folder
from potluck.run.live_options import KeptOptions, LabOptions, ResumeOptions, ServeOptions, load_options
from potluck.run.live_status import LiveStatus, is_live_run, read_live_status
from potluck.run.run_opening import ResumeRequest, reopen_run
from potluck.run.run_result import Result
from potluck.run.run_store import RunStore, Watch
from potluck.run.simulated_run import resume_simulated
from potluck.task import Task

if TYPE_CHECKING:
    from potluck.job import Job
    from potluck.run.live_run import LiveObserver, RejoiningDevices

__all__ = ["resume"]

_UNCHANGED = ResumeOptions()
_MIN_SETTLE_S, _MAX_SETTLE_S = 2.0, 10.0
_SETTLE_FRACTION = 0.4  # of the time without a coordinator: devices look for it less and less often
_RESTART_S = 5.0  # to start several devices by hand


def resume(
    folder: Path | str,
    *,
    overrides: Sequence[str] = (),
    task: Task | None = None,
    data: Path | None = None,
    threads: int | None = None,
    watch: Watch | None = None,
    stopping: Callable[[], bool] = lambda: False,
    take_over: bool = False,
    options: ResumeOptions = _UNCHANGED,
) -> Result:
    """Resume a run from its latest checkpoint.

    The result of a simulated run is that of one that was never interrupted. A live run listens where its devices look
    for it, with the options that it was started with, except as `options` say; a lab starts its devices again. With
    `take_over` the run may have an owner on another machine, which is known to be dead.
    """
    run, data = check_folder("folder", folder) or Path(), check_folder("data", data)
    request = ResumeRequest(run, overrides, task, data, take_over)
    if is_live_run(run):
        if threads is not None:
            raise UserError("threads: a live run computes on its devices; leave it out")
        return _resume_live(request, options, options.observer or _make_observer(watch, stopping))
    if options != _UNCHANGED:
        given = ", ".join(name.removesuffix("_s") for name in options.changes()) or "observer"
        raise UserError(f"{given}: only for live runs, and {run} is a simulated one; leave it out")
    return resume_simulated(request, threads, watch, stopping)


def _make_observer(watch: Watch | None, stopping: Callable[[], bool]) -> LiveObserver:
    from potluck.run.live_run import LogObserver

    class WatchObserver(LogObserver):
        def on_round(self, store: RunStore, now: float) -> None:
            if watch is not None:
                watch(store, now)

        def should_stop(self) -> bool:
            return stopping()

    return WatchObserver()


def _resume_live(request: ResumeRequest, options: ResumeOptions, observer: LiveObserver) -> Result:
    from potluck.run.lab import resume_lab
    from potluck.run.live_run import serve_prepared

    folder = request.folder
    mend_live_folder(folder, take_over=request.take_over)
    status = read_live_status(folder)
    if status is None:
        raise RunError(f"{folder} is not the folder of a live run")
    started_with = load_options(folder) or _default_options(status)
    kept = started_with.apply_changes(options.changes(), request.data)
    settle_s = _settle_s(folder, status)  # before its files are written
    with reopen_run(replace(request, data=kept.data), observer.on_round, observer.should_stop) as (prepared, store):
        rejoining = _rejoining(prepared.job, status, settle_s)
        if kept.lab is not None:
            return resume_lab(prepared, store, kept, request.task, observer, rejoining)
        return serve_prepared(prepared, store, kept, observer, rejoining)


def _default_options(status: LiveStatus) -> KeptOptions:
    """Of a run that was started before options were kept: what its status says of them."""
    if status.lab:
        return KeptOptions(lab=LabOptions())
    if not status.listen:
        return KeptOptions(serve=ServeOptions())
    certs = Path(status.certs) if status.certs else None
    return KeptOptions(serve=ServeOptions(listen=status.listen.partition("/")[2], certs=certs, insecure=certs is None))


def _settle_s(folder: Path, status: LiveStatus) -> float:
    """How long devices that look for the coordinator may take to be back, or for others to be started."""
    if status.ended:
        return _RESTART_S  # devices of a run that ended have ended, too
    died_at = max((path.stat().st_mtime for path in folder.glob("*.json*")), default=0.0)
    return min(max(_SETTLE_FRACTION * (time.time() - died_at), _MIN_SETTLE_S), _MAX_SETTLE_S)


def _rejoining(job: Job, status: LiveStatus, settle_s: float) -> RejoiningDevices:
    """Which devices are waited for: those that were here, but not for long once enough are back."""
    from potluck.run.live_run import RejoiningDevices

    least = job.rounds.least if job.pipeline is None else 1
    return RejoiningDevices(frozenset(status.former or status.joined), least, settle_s)
