"""How much of the processor this process may use at the moment, where Linux sets it a limit.

A limit is a quota of a control group (systemd's CPUQuota, a container's --cpus, `cgset`) or a choice of cores
(taskset). Whoever set it may change it while we run, so it is looked up again every now and then.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["CpuQuota"]

_KNOWN_FOR_S = 0.5


class CpuQuota:
    """The part that is allowed of `threads` threads' work; 1 where nothing limits it."""

    def __init__(self, threads: int, groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self")) -> None:
        self._threads = max(threads, 1)
        self._cgroup_root = groups
        self._proc_folder = own
        self._fraction = 1.0
        self._valid_until = -math.inf

    def allowed_fraction(self) -> float:
        now = time.monotonic()
        if now >= self._valid_until:
            self._fraction = min(1.0, self._available_cores() / self._threads)
            self._valid_until = now + _KNOWN_FOR_S
        return self._fraction

    def _available_cores(self) -> float:
        chosen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else math.inf
        return min([chosen, *(quota for folder in self._cgroup_folders() for quota in _cgroup_quota_cores(folder))])

    def _cgroup_folders(self) -> Iterator[Path]:
        """The control groups that this process is in, each with all those above it."""
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = (self._proc_folder / "cgroup").read_text().splitlines()
        for line in lines:
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0":  # version 2, alone or beside version 1
                roots = [self._cgroup_root, self._cgroup_root / "unified"]
            elif "cpu" in controllers.split(","):
                roots = [self._cgroup_root / controllers, self._cgroup_root / "cpu"]
            else:
                continue
            for root in roots:
                group = root / path.lstrip("/")
                yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _cgroup_quota_cores(folder: Path) -> Iterator[float]:
    """Cores' worth of time that a control group has, if that is limited."""
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (folder / "cpu.max").read_text().split()
        yield int(quota) / int(period)  # "max" is no number
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        microseconds = int((folder / "cpu.cfs_quota_us").read_text())
        if microseconds > 0:
            yield microseconds / int((folder / "cpu.cfs_period_us").read_text())
