"""Removes shared-memory segments that Zenoh leaves behind when a process exits.

At exit a process removes the segments that no other process has mapped, so the last process on a host removes the
shared ones. A killed process removes nothing; Zenoh cleans up after it when the next process uses shared memory.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["clear_at_exit"]


@cache
def clear_at_exit() -> None:
    """Register the removal at exit, once per process."""
    atexit.register(_remove_segments)


def _remove_segments() -> None:
    shared = {path for process in _other_processes() for path in _mapped_segments(process)}
    for path in _mapped_segments(Path("/proc/self")) - shared:
        with contextlib.suppress(OSError):
            path.unlink()


def _other_processes() -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for process in Path("/proc").iterdir():
            if process.name.isdecimal() and int(process.name) != os.getpid():
                yield process


def _mapped_segments(process: Path) -> set[Path]:
    """Zenoh's segments that a process has mapped; empty if its maps cannot be read."""
    segments = set()
    with contextlib.suppress(OSError):
        for line in (process / "maps").read_text().splitlines():
            _, _, name = line.partition("/dev/shm/")
            if name.endswith(".zenoh"):
                segments.add(Path("/dev/shm", name))
    return segments
