"""Promotes a standby by an operator's decision, where no coordination service decides who leads."""

from __future__ import annotations

from pathlib import Path

from potluck.atomic_file import write_atomically
from potluck.errors import RunError
from potluck.run.leadership import load_leadership_record, save_leadership_record
from potluck.run.live_status import read_live_status

__all__ = ["PROMOTE_FILE", "promote"]

PROMOTE_FILE = "promote.request"  # in a standby's folder, which its process looks for


def promote(folder: Path) -> str:
    """Make the standby of this folder the leader, whatever etcd says; returns what happens next."""
    record, status = load_leadership_record(folder), read_live_status(folder)
    if status is None:
        raise RunError(f"{folder} is not the folder of a live run or of its standby")
    if status.is_alive and status.follows is None:
        raise RunError(f"process {status.pid} already leads {folder}")
    if status.is_alive:
        write_atomically(folder / PROMOTE_FILE, b"")
        return f"{folder}: the standby (process {status.pid}) takes over in term {record.term + 1}"
    record.term += 1
    save_leadership_record(folder, record)
    return f"{folder}: no process follows in it; its term is now {record.term}: lead it with `potluck resume {folder}`"
