"""Describes the machine and the package versions that a measurement was made with."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import potluck

__all__ = ["describe_machine", "package_versions", "resident_bytes"]


def describe_machine() -> dict[str, Any]:
    """Cores, processor, memory and current load."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _processor_name(),
        "memory_bytes": _total_memory_bytes(),
        "load": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }


def package_versions() -> dict[str, str]:
    """The versions of Python, Potluck, torch and numpy."""
    versions = {"python": platform.python_version(), "potluck": potluck.__version__}
    return {**versions, **{name: metadata.version(name) for name in ("torch", "numpy")}}


def resident_bytes() -> int:
    """Resident memory of this process now; its peak where /proc is missing."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if platform.system() == "Darwin" else peak * 1024


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
