"""Describes the machine, its load and the package versions that a measurement was made with."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import threading
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import potluck

__all__ = ["LoadSampler", "describe_machine", "describe_revision", "package_versions", "resident_bytes"]


def describe_machine() -> dict[str, Any]:
    """Cores, processor and memory."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _processor_name(),
        "memory_bytes": _total_memory_bytes(),
    }


def describe_revision() -> dict[str, Any]:
    """The commit of the checkout, and whether its files are those of the commit; results do not count."""
    commit = _git_output("rev-parse", "HEAD")
    pages = (":!benchmarks/results", ":!docs/results.md", ":!README.md")
    changed = _git_output("status", "--porcelain", "--", ".", *pages)
    return {"commit": commit, "clean": None if changed is None else not changed}


def _git_output(*words: str) -> str | None:
    """None without git or outside a repository."""
    checkout = Path(__file__).parents[1]
    with suppress(OSError):
        done = subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None
    return None


def package_versions() -> dict[str, str]:
    """The versions of Python, Potluck, torch and numpy, and of optional packages that are installed."""
    versions = {"python": platform.python_version(), "potluck": potluck.__version__}
    versions |= {name: metadata.version(name) for name in ("torch", "numpy")}
    for name in ("transformers", "peft"):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def resident_bytes() -> int:
    """Resident memory of this process now; its peak where /proc is missing."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if platform.system() == "Darwin" else peak * 1024


class LoadSampler:
    """A context that samples the load of this machine from a thread, and counts the processor time that was used."""

    def __init__(self, every_s: float = 1.0) -> None:
        self._every_s = every_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="load-sampler", daemon=True)
        self._samples: list[float] = []

    def __enter__(self) -> LoadSampler:
        self._started_at, self._own_s, self._machine_s = time.monotonic(), _own_processor_s(), _machine_processor_s()
        self._samples.append(_load_average())
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def summary(self) -> dict[str, float]:
        """The load average of the last minute before, during and after, and processor seconds.

        `own_processor_s` is that of this process and of its children that have ended, `machine_processor_s` that of all
        processes; their difference, where it is much, is other load.
        """
        load = [*self._samples, _load_average()]
        summary = {
            "before": load[0], "mean": round(statistics.fmean(load), 2), "most": max(load), "after": load[-1],
            "seconds": round(time.monotonic() - self._started_at, 2),
            "own_processor_s": round(_own_processor_s() - self._own_s, 2),
        }  # fmt: skip
        machine_s = _machine_processor_s()
        if machine_s is not None and self._machine_s is not None:
            summary["machine_processor_s"] = round(machine_s - self._machine_s, 2)
        return summary

    def _sample(self) -> None:
        while not self._done.wait(self._every_s):
            self._samples.append(_load_average())


def _load_average() -> float:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0


def _own_processor_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _machine_processor_s() -> float | None:
    """Of all processes since the machine started; None where /proc is missing."""
    try:
        user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _total_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
