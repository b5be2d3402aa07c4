"""A small file system in memory that can be filled, freed, made read-only and taken away; needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

__all__ = ["fill_disk", "missing_for_disks", "set_read_only", "small_disk"]

_FILLER = "filler"


def missing_for_disks() -> str | None:
    """Why no small file system can be mounted here; None if it can."""
    if os.geteuid() != 0:
        return "a small file system needs root: run the command with sudo"
    return None if shutil.which("mount") else "a small file system needs mount: install util-linux"


@contextlib.contextmanager
def small_disk(folder: Path, nbytes: int) -> Iterator[Path]:
    """Mount a file system of that size at `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={nbytes}", "potluck-faults", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


def fill_disk(folder: Path, leave_bytes: int = 0) -> Path:
    """Use up the space except `leave_bytes`, also what was freed since the last call; removing the file frees it."""
    path = folder / _FILLER
    with path.open("ab") as file:
        while (free := _free_bytes(folder) - leave_bytes) > 0:
            while free > 0:
                with contextlib.suppress(OSError):  # others write meanwhile
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, free)
                    break
                free //= 2
            else:
                break
    return path


def _free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def set_read_only(folder: Path, read_only: bool) -> None:
    _run("mount", "-o", f"remount,{'ro' if read_only else 'rw'}", str(folder))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
