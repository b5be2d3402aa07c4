"""Sets damaged files of a live run's folder aside and goes on without them, or with what the other files say.

    options.json       the default options, with the address and certificates that live.json has
    live.json          the rest of the folder; whom to wait for is lost
    leadership.json    run, term and copy as live.json has them
    join.secret        a new one: tokens that were issued before are no longer valid
    admitted.json      nobody: devices need a valid token to join again

A missing file is as good as one that was set aside. Only the process that owns the folder may do this.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from potluck.atomic_file import UNUSABLE, mark_unusable
from potluck.errors import DamagedFileError, PotluckWarning
from potluck.run.leadership import (
    LEADERSHIP_FILE,
    LeadershipRecord,
    has_leadership_record,
    load_leadership_record,
    save_leadership_record,
)
from potluck.run.live_options import OPTIONS_FILE, load_options
from potluck.run.live_status import LIVE_FILE, LiveStatus, read_live_status, write_live_status
from potluck.run.run_lock import lock_run
from potluck.run.storage_monitor import map_storage_errors
from potluck.worlds.live.security.admission_policy import ADMITTED_FILE, read_admitted
from potluck.worlds.live.security.join_tokens import SECRET_FILE, read_run_secret

__all__ = ["mend_live_folder"]

_READERS: dict[str, tuple[Callable[[Path], object], str]] = {
    OPTIONS_FILE: (
        load_options,
        "default options are used: pass those that the run was started with, such as --token-each or --etcd",
    ),
    LIVE_FILE: (read_live_status, "devices that were connected are not waited for"),
    LEADERSHIP_FILE: (load_leadership_record, "the run and its term are those of the other files"),
    SECRET_FILE: (read_run_secret, "a new one is made: give the devices the new tokens"),
    ADMITTED_FILE: (read_admitted, "a device that joins again needs a valid token"),
}


def mend_live_folder(folder: Path, *, take_over: bool = False) -> None:
    """Own the folder, as `lock_run` says, and mend it; one warning for each file that is damaged."""
    with map_storage_errors(folder), lock_run(folder, take_over=take_over):
        is_lab = not has_leadership_record(folder)
        damaged = {name for name in _READERS if _mark_if_damaged(folder, name)}
        if LIVE_FILE in damaged:
            write_live_status(folder, _rebuilt_status(folder, is_lab))
        if LEADERSHIP_FILE in damaged:
            save_leadership_record(folder, _rebuilt_record(folder))


def _mark_if_damaged(folder: Path, name: str) -> bool:
    read, consequence = _READERS[name]
    try:
        read(folder)
    except DamagedFileError as error:
        mark_unusable(folder / name)
        text = f"{error.path} is damaged ({error.problem}) and was set aside as {name}{UNUSABLE}; {consequence}"
        warnings.warn(text, PotluckWarning, stacklevel=2)
        return True
    return False


def _rebuilt_status(folder: Path, is_lab: bool) -> LiveStatus:
    """Of a process that is not alive any more."""
    options = load_options(folder)
    status = LiveStatus(pid=os.getpid(), born=0, listen="", lab=is_lab, ended=f"its {LIVE_FILE} was damaged")
    if options is not None:
        status.lab = options.lab is not None
    return status


def _rebuilt_record(folder: Path) -> LeadershipRecord:
    """Where nothing says which term it was, the seconds since 1970 are above all terms that were counted."""
    status = read_live_status(folder)
    record = LeadershipRecord(run=folder.absolute().name, term=int(time.time()))
    if status is not None and status.term > 0:
        record.term, record.run = status.term, status.run or record.run
        record.coordinator = status.coordinator or record.coordinator
    return record
