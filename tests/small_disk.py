"""A small disk of its own for tests that fill it or take it away."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["SmallDisk", "mounted_disk"]

_MOUNT = ("mount", "-t", "tmpfs", "-o")


class SmallDisk:
    """A tmpfs at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, leave_bytes: int = 0) -> None:
        """Use up all space but so many bytes, also what was freed since the last call."""
        with self._ballast.open("ab", buffering=0) as file:
            free = os.statvfs(self.path)
            nbytes = free.f_bavail * free.f_frsize - leave_bytes
            while nbytes > 0:
                with contextlib.suppress(OSError):  # a run writes meanwhile
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, nbytes)
                    break
                nbytes //= 2

    def empty(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def cover_read_only(self, folder: Path) -> None:
        """Mount an empty read-only disk over a folder."""
        subprocess.run([*_MOUNT, "ro", "potluck-test", folder], check=True)


@contextmanager
def mounted_disk(path: Path, size: str) -> Iterator[SmallDisk]:
    """A disk of this size at `path`; the test is skipped where this user may not mount one."""
    path.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        [*_MOUNT, f"size={size}", "potluck-test", path], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"NOT TESTED: a full disk needs root, to mount a small tmpfs ({mounted.stderr.strip()})")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", path], check=True)
