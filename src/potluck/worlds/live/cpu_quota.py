"""Reads how much of the processor this process may use, where Linux limits it.

A limit is the quota of a control group (systemd's CPUQuota, a container's --cpus, `cgset`) or a CPU affinity (taskset).
It may change at any time, so it is read again periodically.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["CpuQuota"]

_CACHE_S = 0.5


class CpuQuota:
    """The fraction of `threads` cores that this process may use; 1 where there is no limit."""

    def __init__(
        self, threads: int, cgroup_root: Path = Path("/sys/fs/cgroup"), proc_folder: Path = Path("/proc/self")
    ) -> None:
        self._threads = max(threads, 1)
        self._cgroup_root = cgroup_root
        self._proc_folder = proc_folder
        self._fraction = 1.0
        self._valid_until = -math.inf

    def allowed_fraction(self) -> float:
        now = time.monotonic()
        if now >= self._valid_until:
            self._fraction = min(1.0, self._available_cores() / self._threads)
            self._valid_until = now + _CACHE_S
        return self._fraction

    def _available_cores(self) -> float:
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else math.inf
        return min([affinity, *(quota for folder in self._cgroup_folders() for quota in _cgroup_quota_cores(folder))])

    def _cgroup_folders(self) -> Iterator[Path]:
        """The control groups of this process and all their ancestors."""
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = (self._proc_folder / "cgroup").read_text().splitlines()
        for line in lines:
            hierarchy, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if hierarchy == "0":  # cgroup v2, alone or beside v1
                roots = [self._cgroup_root, self._cgroup_root / "unified"]
            elif "cpu" in controllers.split(","):
                roots = [self._cgroup_root / controllers, self._cgroup_root / "cpu"]
            else:
                continue
            for root in roots:
                group = root / path.lstrip("/")
                yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _cgroup_quota_cores(folder: Path) -> Iterator[float]:
    """The quota of a control group in cores, if it has one."""
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (folder / "cpu.max").read_text().split()
        yield int(quota) / int(period)  # "max" (no limit) is a ValueError
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        microseconds = int((folder / "cpu.cfs_quota_us").read_text())
        if microseconds > 0:
            yield microseconds / int((folder / "cpu.cfs_period_us").read_text())
