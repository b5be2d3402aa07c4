"""Files in shared memory that Zenoh forgets when a process ends.

A process that used shared memory leaves one of its segments behind. Whoever ends removes what it alone has still
mapped: of several processes on a host the last one removes what they shared. A process that was killed cannot, and
the next one that uses shared memory clears up after it (Zenoh does that by itself).
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
    """See to it, once, that this process leaves nothing behind."""
    atexit.register(_remove_segments)


def _remove_segments() -> None:
    others = {path for process in _other_processes() for path in _mapped_segments(process)}
    for path in _mapped_segments(Path("/proc/self")) - others:
        with contextlib.suppress(OSError):
            path.unlink()


def _other_processes() -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for process in Path("/proc").iterdir():
            if process.name.isdecimal() and int(process.name) != os.getpid():
                yield process


def _mapped_segments(process: Path) -> set[Path]:
    """The segments of Zenoh that a process has mapped, as far as we may know."""
    found = set()
    with contextlib.suppress(OSError):
        for line in (process / "maps").read_text().splitlines():
            _, _, name = line.partition("/dev/shm/")
            if name.endswith(".zenoh"):
                found.add(Path("/dev/shm", name))
    return found
