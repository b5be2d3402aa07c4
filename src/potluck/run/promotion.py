"""Promotes a coordinator by an operator's decision: where nothing else decides who leads, or from an older copy.

    a standby runs    `promote.request` asks its process to take over
    no process runs   the folder's record says so, for the next `potluck resume`

Both remain until the coordinator leads, so that nothing is lost if it dies before.
"""

from __future__ import annotations

from pathlib import Path

from potluck.atomic_file import write_atomically
from potluck.errors import RunError
from potluck.run.folder_mending import mend_live_folder
from potluck.run.leadership import LeadershipRecord, load_leadership_record, save_leadership_record
from potluck.run.live_status import read_live_status
from potluck.run.storage_monitor import map_storage_errors

__all__ = ["is_promotion_requested", "promote", "record_term"]

_REQUEST_FILE = "promote.request"


def promote(folder: Path) -> str:
    """Let the copy of the run in this folder lead, whatever it lacks; returns what happens next."""
    status = read_live_status(folder)
    if status is None:
        raise RunError(f"{folder} is not the folder of a live run or of its standby")
    if status.is_alive and status.follows is None:
        raise RunError(f"process {status.pid} already leads {folder}")
    if status.is_alive:
        with map_storage_errors(folder):
            write_atomically(folder / _REQUEST_FILE, b"")
        return f"{folder}: the standby (process {status.pid}) takes over in a term above {status.term}"
    mend_live_folder(folder)
    record = load_leadership_record(folder)
    record.promoted = True
    with map_storage_errors(folder):
        save_leadership_record(folder, record)
    return f"{folder}: no process follows in it; `potluck resume {folder}` now leads it in a term above {record.term}"


def is_promotion_requested(folder: Path) -> bool:
    """Whether the standby whose folder this is should take over."""
    return (folder / _REQUEST_FILE).exists()


def record_term(folder: Path, record: LeadershipRecord, term: int) -> None:
    """Note that the coordinator of this folder leads in `term`; what promoted it has been done."""
    record.term, record.promoted = term, False
    save_leadership_record(folder, record)
    (folder / _REQUEST_FILE).unlink(missing_ok=True)
