"""A note that a live run's folder cannot be written. It lies outside that folder, since nothing can be noted inside it.

The process that leads the run writes it again every second; `potluck status` and the live page read it, and ignore one
that is out of date.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
from pathlib import Path

import msgspec

from potluck.atomic_file import write_atomically

__all__ = ["StorageWarning", "note_warning", "read_warning", "withdraw_warning"]

_VALID_S = 15.0
_MEMORY_FOLDER = Path("/dev/shm")  # not on the disk that may be full


class StorageWarning(msgspec.Struct, kw_only=True, frozen=True):
    """Why a run's folder cannot be written, and what its coordinator holds in memory meanwhile."""

    problem: str
    since: float  # seconds since 1970
    held_bytes: int
    held_records: int
    dropped_records: int
    pid: int
    round: int

    def sentence(self) -> str:
        dropped = f", {self.dropped_records:,} dropped" if self.dropped_records else ""
        return (
            f"the run's folder cannot be written since {time.strftime('%H:%M:%S', time.localtime(self.since))}:"
            f" {self.problem}; training continues (round {self.round}), {self.held_records:,} records"
            f" ({self.held_bytes / 1e6:.3g} MB) are held in memory{dropped}"
        )


def note_warning(folder: Path, warning: StorageWarning) -> None:
    """Make the warning visible to other processes of this user; without a place for it, it is in the log only."""
    with contextlib.suppress(OSError):
        if (path := _warning_path(folder)) is not None:
            write_atomically(path, msgspec.json.encode(warning), private=True)


def withdraw_warning(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if (path := _warning_path(folder)) is not None:
            path.unlink(missing_ok=True)


def read_warning(folder: Path) -> StorageWarning | None:
    """The warning about a run's folder, if its coordinator has renewed it lately."""
    try:
        path = _warning_path(folder)
        if path is None or time.time() - path.stat().st_mtime > _VALID_S:
            return None
        return msgspec.json.decode(path.read_bytes(), type=StorageWarning)
    except (OSError, msgspec.DecodeError):
        return None


def _warning_path(folder: Path) -> Path | None:
    """A file in a folder that belongs to this user alone, by the real path of the run's folder."""
    parent = _MEMORY_FOLDER if _MEMORY_FOLDER.is_dir() else Path(tempfile.gettempdir())
    own = parent / f"potluck-{os.getuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    status = own.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        return None  # another user made it
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:16]
    return own / f"{name}.warning"
