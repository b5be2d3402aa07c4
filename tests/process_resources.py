"""Sockets and shared memory that a process holds, according to /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["shared_memory", "sockets"]


def sockets() -> set[str]:
    """The sockets this process has open."""
    links = set()
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.add(os.readlink(f"/proc/self/fd/{entry}"))
    return {link for link in links if link.startswith("socket")}


def shared_memory(pid: int | None = None) -> set[Path]:
    """Files under /dev/shm that a process (by default this one) has mapped; empty if it has exited."""
    files = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid or 'self'}/maps").read_text().splitlines():
            if "/dev/shm/" in line and not line.endswith("(deleted)"):
                files.add(Path(line[line.index("/dev/shm/") :]))
    return files
